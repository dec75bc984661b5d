import java.io.BufferedInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.charset.StandardCharsets;
import java.text.ParseException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import org.apache.lucene.analysis.core.WhitespaceAnalyzer;
import org.apache.lucene.document.BinaryDocValuesField;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.StringField;
import org.apache.lucene.document.TextField;
import org.apache.lucene.geo.Component2D;
import org.apache.lucene.geo.LatLonGeometry;
import org.apache.lucene.geo.SimpleWKTShapeParser;
import org.apache.lucene.index.BinaryDocValues;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.Term;
import org.apache.lucene.monitor.CustomQueryHandler;
import org.apache.lucene.monitor.MatcherFactory;
import org.apache.lucene.monitor.Monitor;
import org.apache.lucene.monitor.MonitorConfiguration;
import org.apache.lucene.monitor.MonitorQuery;
import org.apache.lucene.monitor.MultipassTermFilteredPresearcher;
import org.apache.lucene.monitor.QueryMatch;
import org.apache.lucene.monitor.QueryTree;
import org.apache.lucene.monitor.TermFilteredPresearcher;
import org.apache.lucene.monitor.TermWeightor;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.ConstantScoreScorer;
import org.apache.lucene.search.ConstantScoreWeight;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.PhraseQuery;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.QueryVisitor;
import org.apache.lucene.search.ScoreMode;
import org.apache.lucene.search.ScorerSupplier;
import org.apache.lucene.search.TermQuery;
import org.apache.lucene.search.TwoPhaseIterator;
import org.apache.lucene.search.Weight;
import org.apache.lucene.util.BytesRef;

/**
 * Lucene's Monitor behind a pipe; `benchmarks.peers` writes frames to standard input and reads answers.
 *
 * <p>A frame is int64 command, rows, columns, bytes of text, then int64[rows, columns] (doubles as their bits), then a
 * line of text a row; all little-endian. An answer is int64 nanoseconds, pairs, then int32[pairs, 2].
 */
final class LuceneMonitor {
  static final int PASSES = Integer.getInteger("passes"), THREADS = Integer.getInteger("threads");
  /** Messages that are matched together; a search's cells are 2^FINE to a side of its box, or smaller. */
  static final int BATCH = Integer.getInteger("batch"), FINE = Integer.getInteger("fine", 1);
  /** Most cells of a message at a level, a range; and the step from one band of prices to the next. */
  static final int MOST_CELLS = 16, FINEST = 20;
  static final double BAND = Math.log(1.25);

  final TreeSet<Integer> levels = new TreeSet<>();
  final Map<Term, Integer> counts = new HashMap<>();
  final Map<String, Integer> totals = new HashMap<>();
  final ExecutorService pool = Executors.newFixedThreadPool(THREADS);
  final Monitor monitor;
  final MatcherFactory<QueryMatch> matcher =
      searcher -> {
        searcher.setQueryCache(null);
        return QueryMatch.SIMPLE_MATCHER.createMatcher(searcher);
      };

  LuceneMonitor() throws IOException {
    CustomQueryHandler homes = (query, weightor) -> query instanceof Home home ? home.terms(weightor) : null;
    TermWeightor weightor = this::rarity;
    var presearcher =
        PASSES == 1
            ? new TermFilteredPresearcher(weightor, List.of(homes), Set.of())
            : new MultipassTermFilteredPresearcher(PASSES, 0, weightor, List.of(homes), Set.of());
    // until it is indexed a search holds a block of 32 KB for each field and pass
    var configuration =
        new MonitorConfiguration().setQueryUpdateBufferSize(2_000).setPurgeFrequency(1, TimeUnit.DAYS);
    monitor = new Monitor(new WhitespaceAnalyzer(), presearcher, configuration);
  }

  /** The rarer a term among searches, the more it weighs; searches take after messages. */
  double rarity(Term term) {
    double total = totals.getOrDefault(group(term), 1);
    return 1 + Math.max(0, Math.log(1 + total / counts.getOrDefault(term, 1)));
  }

  /** Cells are counted level by level. */
  static String group(Term term) {
    return term.field().equals("cell") ? term.text().substring(0, term.text().indexOf(':')) : term.field();
  }

  void count(Term term) {
    counts.merge(term, 1, Integer::sum);
    totals.merge(group(term), 1, Integer::sum);
  }

  /** A box, a circle, a polygon, a range of prices, bedrooms, types: each as exact as the doubles that were given. */
  static final class Home extends Query {
    static final int WIDTH = 11;
    final double[] box = new double[4], circle = new double[4];
    final long[] range = new long[3], types;
    final Component2D polygon;
    final int level;

    Home(LongBuffer row, String types, String shape) throws IOException, ParseException {
      for (int i = 0; i < 4; i++) box[i] = Double.longBitsToDouble(row.get());
      row.get(range);
      for (int i = 0; i < 4; i++) circle[i] = Double.longBitsToDouble(row.get());
      this.types = types.isEmpty() ? null : Arrays.stream(types.split(",")).mapToLong(Long::parseLong).toArray();
      polygon = shape.isEmpty() ? null : LatLonGeometry.create((LatLonGeometry) SimpleWKTShapeParser.parse(shape));
      double side = Math.max(Math.max(box[2] - box[0], box[3] - box[1]), 1e-9);
      level = Math.clamp((int) Math.floor(Math.log(360 / side) / Math.log(2)) + FINE, 0, FINEST);
    }

    /** The terms one of which a message must carry: of a cell, and of a band of prices. */
    QueryTree terms(TermWeightor weightor) {
      List<Function<TermWeightor, QueryTree>> parts = new ArrayList<>();
      List<Term> cells = cells(level, box, Integer.MAX_VALUE);
      cells.add(everywhere(level));
      parts.add(weigh -> any(cells, weigh));
      if (range[0] > 0 && range[1] != Long.MAX_VALUE) {
        List<Term> bands = new ArrayList<>();
        for (int i = band(range[0]); i <= band(range[1]); i++) bands.add(new Term("band", Integer.toString(i)));
        parts.add(weigh -> any(bands, weigh));
      }
      return QueryTree.conjunction(parts, weightor);
    }

    static QueryTree any(List<Term> terms, TermWeightor weightor) {
      List<Function<TermWeightor, QueryTree>> parts = new ArrayList<>();
      for (Term term : terms) parts.add(weigh -> QueryTree.term(term, weigh));
      return QueryTree.disjunction(parts, weightor);
    }

    boolean passes(BytesRef home) {
      ByteBuffer is = ByteBuffer.wrap(home.bytes, home.offset, home.length);
      int at = home.offset;
      double west = is.getDouble(at), south = is.getDouble(at + 8);
      if (box[0] > is.getDouble(at + 16) || box[2] < west || box[1] > is.getDouble(at + 24) || box[3] < south) {
        return false;
      }
      long price = is.getLong(at + 32), type = is.getLong(at + 48);
      if (price < range[0] || price > range[1] || is.getLong(at + 40) < range[2]) return false;
      if (types != null && Arrays.stream(types).noneMatch(one -> one == type)) return false;
      double x = is.getDouble(at + 56) - circle[0], y = is.getDouble(at + 64) - circle[1];
      double z = is.getDouble(at + 72) - circle[2];
      return x * x + y * y + z * z <= circle[3] && (polygon == null || polygon.contains(west, south));
    }

    @Override
    public Weight createWeight(IndexSearcher searcher, ScoreMode mode, float boost) {
      return new ConstantScoreWeight(this, boost) {
        @Override
        public ScorerSupplier scorerSupplier(LeafReaderContext context) throws IOException {
          BinaryDocValues homes = context.reader().getBinaryDocValues("home");
          TwoPhaseIterator those =
              new TwoPhaseIterator(homes) {
                @Override
                public boolean matches() throws IOException {
                  return passes(homes.binaryValue());
                }

                @Override
                public float matchCost() {
                  return 30;
                }
              };
          return new DefaultScorerSupplier(new ConstantScoreScorer(score(), mode, those));
        }

        @Override
        public boolean isCacheable(LeafReaderContext context) {
          return false;
        }
      };
    }

    @Override
    public void visit(QueryVisitor visitor) {
      visitor.visitLeaf(this);
    }

    @Override
    public String toString(String field) {
      return "home";
    }

    @Override
    public boolean equals(Object other) {
      return this == other;
    }

    @Override
    public int hashCode() {
      return System.identityHashCode(this);
    }
  }

  /** The cells of a level that a box meets, if there are at most so many; else the term of a box that meets more. */
  static List<Term> cells(int level, double[] box, int most) {
    long[] side = new long[4];
    for (int i = 0; i < 4; i++) side[i] = (long) Math.floor((box[i] + 180) / 360 * (1L << level));
    List<Term> found = new ArrayList<>();
    if ((side[2] - side[0] + 1) * (side[3] - side[1] + 1) > most) {
      found.add(everywhere(level));
      return found;
    }
    for (long x = side[0]; x <= side[2]; x++) {
      for (long y = side[1]; y <= side[3]; y++) found.add(new Term("cell", level + ":" + x + ":" + y));
    }
    return found;
  }

  static Term everywhere(int level) {
    return new Term("cell", level + ":");
  }

  /** Keys of positive numbers are the bits of their doubles. */
  static int band(long key) {
    return (int) Math.floor(Math.log(Double.longBitsToDouble(key)) / BAND);
  }

  static Term word(String asked) {
    return asked.endsWith(":*") ? new Term("start", asked.substring(0, 3)) : new Term("text", asked);
  }

  /** The words of a search: `one & two & (three <-> four) & (five | six) & sev:*`. */
  List<Query> words(String asked) {
    List<Query> found = new ArrayList<>();
    for (String part : asked.isEmpty() ? new String[0] : asked.split(" & ")) {
      if (part.contains(" <-> ")) {
        String[] phrase = part.substring(1, part.length() - 1).split(" <-> ");
        Arrays.stream(phrase).forEach(each -> count(word(each)));
        found.add(new PhraseQuery("text", phrase));
      } else if (part.startsWith("(")) {
        var any = new BooleanQuery.Builder();
        for (String each : part.substring(1, part.length() - 1).split(" \\| ")) {
          count(word(each));
          any.add(new TermQuery(word(each)), Occur.SHOULD);
        }
        found.add(any.build());
      } else {
        count(word(part));
        found.add(new TermQuery(word(part)));
      }
    }
    return found;
  }

  void add(int rows, LongBuffer numbers, String[] lines) throws Exception {
    List<MonitorQuery> searches = new ArrayList<>();
    for (int row = 0; row < rows; row++) {
      String[] told = lines[row].split("\t", -1);
      String number = Long.toString(numbers.get());
      Home home = new Home(numbers, told[1], told[2]);
      levels.add(home.level);
      double x = (home.box[0] + home.box[2]) / 2, y = (home.box[1] + home.box[3]) / 2;
      count(cells(home.level, new double[] {x, y, x, y}, 1).get(0));
      if (home.range[0] > 0) count(new Term("band", Integer.toString(band(home.range[0]))));
      var all = new BooleanQuery.Builder();
      words(told[0]).forEach(query -> all.add(query, Occur.FILTER));
      searches.add(new MonitorQuery(number, all.add(home, Occur.FILTER).build()));
    }
    monitor.register(searches);
  }

  Document document(LongBuffer numbers, String text) {
    long[] home = new long[Home.WIDTH - 1];
    numbers.get(home);
    ByteBuffer bytes = ByteBuffer.allocate(8 * home.length);
    bytes.asLongBuffer().put(home);
    Document document = new Document();
    document.add(new BinaryDocValuesField("home", new BytesRef(bytes.array())));
    document.add(new TextField("text", text, Field.Store.NO));
    Set<String> starts = new TreeSet<>();
    for (String word : text.split(" ")) if (word.length() >= 3) starts.add(word.substring(0, 3));
    for (String start : starts) document.add(new StringField("start", start, Field.Store.NO));
    double[] box = new double[4];
    for (int i = 0; i < 4; i++) box[i] = Double.longBitsToDouble(home[i]);
    for (int level : levels) {
      for (Term cell : cells(level, box, MOST_CELLS)) document.add(new StringField("cell", cell.text(), Field.Store.NO));
    }
    if (home[4] > 0) document.add(new StringField("band", Integer.toString(band(home[4])), Field.Store.NO));
    return document;
  }

  /** Row and number of every matching pair. */
  int[] match(int first, Document[] documents) throws IOException {
    var found = monitor.match(documents, matcher);
    if (!found.getErrors().isEmpty()) throw new IllegalStateException(found.getErrors().toString());
    int pairs = 0;
    int[] told = new int[2 * found.getBatchSize()];
    for (int i = 0; i < documents.length; i++) {
      for (QueryMatch match : found.getMatches(i)) {
        if (told.length < 2 * pairs + 2) told = Arrays.copyOf(told, 2 * told.length);
        told[2 * pairs] = first + i;
        told[2 * pairs++ + 1] = Integer.parseInt(match.getQueryId());
      }
    }
    return Arrays.copyOf(told, 2 * pairs);
  }

  ByteBuffer match(int rows, LongBuffer numbers, String[] lines) throws Exception {
    long begun = System.nanoTime();
    List<Callable<int[]>> parts = new ArrayList<>();
    for (int at = 0; at < rows; at += BATCH) {
      int first = at, count = Math.min(BATCH, rows - at);
      LongBuffer own = numbers.slice(first * (Home.WIDTH - 1), count * (Home.WIDTH - 1));
      parts.add(
          () -> {
            Document[] documents = new Document[count];
            for (int i = 0; i < count; i++) documents[i] = document(own, lines[first + i]);
            return match(first, documents);
          });
    }
    List<int[]> found = new ArrayList<>();
    for (Future<int[]> part : pool.invokeAll(parts)) found.add(part.get());
    long took = System.nanoTime() - begun;
    int size = found.stream().mapToInt(each -> each.length).sum();
    ByteBuffer answer = ByteBuffer.allocate(16 + 4 * size).order(ByteOrder.LITTLE_ENDIAN);
    answer.putLong(took).putLong(size / 2);
    IntBuffer pairs = answer.asIntBuffer();
    found.forEach(pairs::put);
    return answer;
  }

  static ByteBuffer numbers(long... two) {
    ByteBuffer answer = ByteBuffer.allocate(8 * two.length).order(ByteOrder.LITTLE_ENDIAN);
    answer.asLongBuffer().put(two);
    return answer;
  }

  static long heap() {
    for (int i = 0; i < 3; i++) System.gc();
    return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
  }

  static ByteBuffer read(InputStream in, long bytes) throws IOException {
    return ByteBuffer.wrap(in.readNBytes((int) bytes)).order(ByteOrder.LITTLE_ENDIAN);
  }

  public static void main(String[] arguments) throws Exception {
    var in = new BufferedInputStream(System.in, 1 << 20);
    var peer = new LuceneMonitor();
    long before = heap();
    for (ByteBuffer head = read(in, 32); head.remaining() == 32; head = read(in, 32)) {
      int command = (int) head.getLong(), rows = (int) head.getLong();
      LongBuffer numbers = read(in, 8L * rows * head.getLong()).asLongBuffer();
      String[] lines = new String(read(in, head.getLong()).array(), StandardCharsets.UTF_8).split("\n", -1);
      ByteBuffer answer = numbers(0, 0);
      if (command == 'A') {
        peer.add(rows, numbers, lines);
      } else if (command == 'M') {
        answer = peer.match(rows, numbers, lines);
      } else if (command == 'S') {
        answer = numbers(heap() - before, 0);
      } else {
        List<String> gone = new ArrayList<>();
        while (numbers.hasRemaining()) gone.add(Long.toString(numbers.get()));
        peer.monitor.deleteById(gone);
      }
      System.out.write(answer.array());
      System.out.flush();
    }
    System.exit(0);
  }
}
