/**
 * Types of the client `skyray.js`, for browsers and Node.js 20 or later.
 *
 *     import { Client } from "./skyray.js";
 *     const client = new Client(url);
 *     for await (const update of client.updates({ subscription: "s1", since: "begin" })) console.log(update.message_id);
 */

/** What the client throws; `reason` is the server's code, `status` that of HTTP, 0 without an answer. */
export class ClientError extends Error {
  readonly reason: string;
  readonly detail: string;
  readonly status: number;
  /** Parameter, header or body that is wrong. */
  readonly where: string;
  /** What to do. */
  readonly do: string;
}

/** Updates were lost; `resume` is the position behind them, for `since`, null for now. */
export class Gap extends ClientError {
  readonly missed: Missed;
  readonly resume: string | null;
}

/** One name, or several. */
export type Names = string | string[];

/** West, south, east, north in degrees. */
export type Box = [number, number, number, number];

export type Event =
  | { type: "update"; data: Update }
  | { type: "progress"; data: { /** All updates as of messages up to this one were handed on. */ through: number } }
  | { type: "snapshot"; data: Results }
  | { type: "gap"; data: Missed };

export interface FollowOptions {
  subscription?: Names;
  kind?: Names;
  owner?: string;
  /** Of the messages. */
  region?: Box;
  /** A `position` of before, or "begin"; without it from now on. */
  since?: string | null;
  /** Gets what is lost, and updates go on behind it; without it `Gap` is thrown. */
  onGap?: (missed: Missed) => void;
  onState?: (state: "live" | "reconnecting") => void;
  /** Seconds without a byte after which it connects again: 15. */
  silenceS?: number;
  /** Seconds of waiting in all between two events, before it throws: no limit; before the first event that of the client. */
  patienceS?: number;
}

/** A stream of updates that reconnects by itself and hands on each once, in order; `break` or `close` ends it. */
export interface Updates<T> extends AsyncIterable<T> {
  /** Of the last update that was handed on; pass it as `since` to continue after it. */
  readonly position: string | null;
  /** All updates as of messages up to this one were handed on; -1 before the first. */
  readonly through: number;
  /** Connections that were opened so far. */
  readonly connections: number;
  close(): void;
}

export interface CallOptions {
  /** Several values are several parameters; null and "" are left out. */
  query?: Record<string, unknown>;
  /** JSON. */
  body?: unknown;
  headers?: Record<string, string>;
  /** Whether it may be sent a second time when no answer came: true. */
  again?: boolean;
}

export class Client {
  /**
   * @param url of the server; by default the one that the page comes from
   * @param options `key`: a text, or a function that gives one; `patienceS`: limit of all waits between attempts (30);
   * `timeoutS`: of a request (60)
   */
  constructor(url?: string, options?: { key?: string | null | (() => string | null); patienceS?: number; timeoutS?: number });

  /** Any request of the API; the value of its answer, an array for lines of JSON. */
  call<T = any>(method: string, path: string, options?: CallOptions): Promise<T>;

  /** Create a subscription; without a `subscription_id` the client makes one. */
  subscribe(columns: Subscription, options?: { replace?: boolean }): Promise<SubscriptionOutcome>;
  /** Create or replace the subscription of this id; with `etag` only that version, with `new` none. */
  replace(id: string, columns: Subscription, options?: { etag?: string | null; new?: boolean }): Promise<SubscriptionOutcome>;
  subscription(id: string): Promise<{ columns: Subscription; etag: string }>;
  unsubscribe(id: string, options?: { etag?: string | null }): Promise<SubscriptionOutcome>;
  /** The active subscriptions in the order of registration, read page by page. */
  subscriptions(filters?: { kind?: Names; prefix?: string; owner?: string; region?: Box }): AsyncIterableIterator<Subscription>;

  /** Publish messages, at most some thousands of them; those without an `id` get one, so that each is taken once. */
  publish(messages: Message[], options?: { wait?: "delivered" | null }): Promise<MessagesAnswer>;
  publish(message: Message, options?: { wait?: "delivered" | null }): Promise<MessageOutcome>;

  /** Updates as they come, each once and in order, however often the connection or the server fails. */
  updates(options?: FollowOptions): Updates<Update>;
  /** As `updates`, with all events, and with `snapshot` first the result of each followed subscription. */
  events(options?: FollowOptions & { snapshot?: boolean }): Updates<Event>;

  results(id: string): Promise<Results>;
  /** Why a message (its id, or `seq:N`) is in a result, or not. */
  explain(id: string, message: string): Promise<Explanation>;
  /** Which subscriptions a message would reach; nothing is stored. */
  match(message: Message, options?: { limit?: number }): Promise<Match>;
  /** What a subscription would have matched among the latest messages; nothing is stored. */
  preview(columns: Subscription, options?: { limit?: number }): Promise<Preview>;
  health(): Promise<Health>;
  stream(): Promise<Stream>;
}

/** The path of a subscription, whatever characters its id has; for `call`. */
export function subscriptionPath(id: string, rest?: string): string;

// Below: made from the OpenAPI document by tests/support/client_types.py.

/** An attribute of messages, which `where` of a subscription can name. */
export interface Attribute {
  name: string;
  type: "number" | "category" | "time" | "categories" | "text";
  /** values that do not fit it; None of a replay */
  misfits?: number | null;
}

/** What the backfill of a subscription finds. */
export interface Backfilled {
  /** the number of its first message */
  start: number;
  updates: number;
  /** whether there are more, older ones, which are left out */
  truncated: boolean;
}

/** Why a message is in a result, or is not. */
export interface Explanation {
  in_result: boolean;
  reason: string;
  why: string;
  as_of: number;
  words: Array<string>;
  missing: Array<string>;
  /** knn: the distance, metres on the earth (with --distance plane a part of the world's side); topk: 0 to 1; decay: a logarithm that grows with the time of the message, so that only which is larger counts; skyline: 0 to 1, how near to the middle of the region; null for a match of boolean */
  score: number | null;
  rank: number | null;
  /** score of the k-th message, in the same unit */
  threshold: number | null;
  distance_km: number | null;
  /** the first messages that rank before it */
  rivals: Array<Record<string, unknown>>;
  updates: Array<Record<string, unknown>>;
  [column: string]: unknown;
}

/** How much of its disk the stream's folder takes, measured once a minute at most. */
export interface FolderDisk {
  /** of log, updates, index and checkpoints */
  size_bytes: Record<string, number>;
  free_bytes: number;
  /** of the last day; null in the first minute */
  grows_bytes_per_s: number | null;
  /** when the disk is full at this pace; null if not within ten years */
  full_at: string | null;
}

/** What the process does, and figures of the stream: none before its log is read. */
export interface Health {
  status: "starting" | "ok";
  /** what is done until messages are matched; null once they are */
  doing?: string | null;
  /** how much of that is done, 0 to 1, where that is known */
  done?: number | null;
  release: string;
  /** kinds whose kernels are compiled now */
  preparing?: Array<string>;
  messages?: number | null;
  next_seq?: number | null;
  complete_through?: number | null;
  subscriptions?: number | null;
  /** of these, how many require nothing; None of a replay */
  broad?: number | null;
  refused?: number | null;
  duplicates?: number | null;
  clients?: number | null;
  waiting?: number | null;
  source?: Source | null;
  sinks?: Array<Sink>;
}

/** The objects of a stream of objects that live; with `most_bytes` no new one is taken. */
export interface LivingFacts {
  living: number;
  /** of their ids and versions in memory, about */
  size_bytes: number;
  most_bytes: number;
}

/** Which subscriptions a message would reach. */
export interface Match {
  words: Array<string>;
  subscriptions: number;
  /** subscriptions with a word of the message, or without any */
  candidates: number;
  reached: Array<Reached>;
  reached_in_all: number;
  /** the first subscriptions whose query failed */
  missed: Array<NearMiss>;
  /** counts by reason */
  not_reached: Record<string, number>;
  /** whether all candidates were judged */
  complete: boolean;
}

/** A message, in one of the forms of docs/formats.md: other names of these columns are found too. */
export interface Message {
  /** a message with op delete has none */
  text?: string | null;
  /** degrees */
  lon: number;
  /** degrees */
  lat: number;
  /** given by the producer: a message that is sent again with it is taken once */
  id?: string | number | null;
  /** ISO 8601, or seconds since 1970 */
  time?: string | number | null;
  /** what the message is a version of */
  object_id?: string | number | null;
  op?: "publish" | "delete" | 0 | 1 | null;
  /** the language of its words, such as german */
  lang?: unknown;
  /** of an object: seconds until this version ends it, a number */
  ttl_s?: unknown;
  /** of an object: when this version ends it, as `time` */
  expires_at?: unknown;
  [column: string]: unknown;
}

/** What became of a message. */
export interface MessageOutcome {
  status: "accepted" | "duplicate" | "refused";
  id?: string | null;
  /** its number in the stream */
  seq?: number | null;
  /** of the request, from 1, where it has several rows */
  line?: number | null;
  reason?: string | null;
  detail?: string | null;
  /** of a refusal: whose value is at fault; null: the whole row */
  column?: string | null;
  /** what the row has there, as text where it may be long */
  value?: unknown;
  /** values that the message was taken without */
  warnings?: Array<Warned> | null;
  /** with wait=delivered: whether its updates are out */
  delivered?: boolean | null;
}

/** What became of the messages of an array. */
export interface MessagesAnswer {
  accepted: number;
  duplicates: number;
  refused: number;
  outcomes: Array<MessageOutcome>;
  delivered?: boolean | null;
}

/** Updates that were not sent, why, and what to do; `before` is the first position that is there. */
export interface Missed {
  reason: string;
  detail?: string;
  do?: string;
  after?: string | null;
  before?: string | null;
}

/** A subscription whose query a message fails. */
export interface NearMiss {
  subscription_id: string;
  kind: string;
  reason: string;
  /** the parts of the query that failed, and where the words of a phrase stand */
  clause: string;
}

/** What a subscription would have matched among all logged messages. */
export interface Preview {
  /** messages that were tested */
  read: number;
  candidates: number;
  messages: number;
  day: number | null;
  week: number | null;
  per_day: number | null;
  newest: Array<Record<string, unknown>>;
  conditions: Array<Record<string, unknown>>;
  [column: string]: unknown;
}

/** A subscription that a message would reach. */
export interface Reached {
  subscription_id: string;
  kind: string;
  words: Array<string>;
  /** knn: the distance, metres on the earth (with --distance plane a part of the world's side); topk: 0 to 1; decay: a logarithm that grows with the time of the message, so that only which is larger counts; skyline: 0 to 1, how near to the middle of the region; null for a match of boolean */
  score: number | null;
}

/** A message in a result. */
export interface ResultRow {
  message_id: string;
  seq: number;
  text: string;
  lon: number;
  lat: number;
  /** from 1; null for a match */
  rank?: number | null;
  /** knn: the distance, metres on the earth (with --distance plane a part of the world's side); topk: 0 to 1; decay: a logarithm that grows with the time of the message, so that only which is larger counts; skyline: 0 to 1, how near to the middle of the region; null for a match of boolean */
  score?: number | null;
  /** the keywords that it has */
  words?: Array<string>;
  /** null where the subscription has a region */
  distance_km?: number | null;
  /** in a stream of objects, the object that the message is a version of */
  object_id?: string | null;
}

/** The result of a subscription as of message `as_of`, best first; with a `gap` rows may be missing. */
export interface Results {
  subscription_id: string;
  kind: string;
  /** all messages up to this one are accounted for */
  as_of: number;
  results: Array<ResultRow>;
  /** there if files of updates are lost: rows of messages from `after` to `before` may be missing */
  gap?: Missed | null;
}

/** A receiver of all updates; `released` = `delivered` + `waiting` + `lost`, since the sink began. */
export interface Sink {
  name: string;
  /** away: tried again and again; stopped: it has refused, until a restart */
  state: "connecting" | "delivering" | "away" | "stopped" | "ended";
  /** why it is away, or has stopped */
  error: string | null;
  exactly_once: boolean;
  /** id of the last update, or place, up to which it has all durably */
  position: string | null;
  released: number;
  delivered: number;
  waiting: number;
  /** updates whose files were gone before they were delivered */
  lost: number;
  reconnects: number;
}

/** A broker that is read, and how far. */
export interface Source {
  name: string;
  /** away: tried again and again */
  state: "connecting" | "reading" | "away" | "ended";
  /** why it is away */
  error: string | null;
  /** messages of the broker that are not read yet */
  lag: number | null;
  /** messages that were read since the start */
  records: number;
  reconnects: number;
  /** messages that the broker removed before they were read */
  removed: number;
  /** by partition: the last message that is in the log, or was refused */
  durable: Record<string, number>;
}

/** What a client needs to know of the stream. */
export interface Stream {
  attributes: Array<Attribute>;
  /** of recent messages; none of a replay */
  fields?: Array<UndeclaredField>;
  kinds: Array<string>;
  distance: "sphere" | "plane";
  projection: string;
  /** west, south, east, north in degrees */
  world: Array<number>;
  window: string;
  /** language in which words are stemmed; empty for none */
  stem: string;
  /** whether cafe is café */
  fold_accents: boolean;
  next_seq: number;
  /** earlier messages are gone, but for those that results have */
  first_kept_seq?: number;
  /** all updates as of messages up to this one are out; -1 for none */
  complete_through: number;
  /** of a stream of objects */
  objects?: LivingFacts | null;
  /** only to a key with the scope admin, where there are keys */
  disk?: FolderDisk | null;
}

/** A subscription; its columns are those of docs/formats.md, and free ones. */
export interface Subscription {
  /** without one the server makes one */
  subscription_id?: string | number | null;
  /** boolean, topk, decay, knn or skyline */
  kind: string;
  /** none: every message that the rest allows */
  keywords?: string | Array<string> | null;
  lon?: number | null;
  lat?: number | null;
  /** west, south, east, north in degrees */
  region?: Array<number> | null;
  /** lon, lat, radius_m */
  circle?: Record<string, number> | null;
  /** GeoJSON geometry */
  polygon?: Record<string, unknown> | null;
  radius_m?: number | null;
  /** all, any, or how many keywords */
  match?: string | number | null;
  not_keywords?: string | Array<string> | null;
  /** the language of its words, such as german */
  lang?: string | null;
  where?: Record<string, unknown> | null;
  /** of objects: which of enter, leave, change are wanted */
  on?: Array<string> | null;
  /** words, OR, brackets and -, or an object of all, any, none and where */
  query?: string | Record<string, unknown> | null;
  /** true for one that requires nothing */
  everything?: boolean | null;
  tell?: Tell | null;
  /** attributes that its updates carry; true: all that are declared */
  include?: boolean | Array<string> | null;
  /** earlier messages for a boolean: true, a number of messages, or a time such as 7d */
  backfill?: boolean | number | string | null;
  k?: number | null;
  alpha?: number | null;
  /** when it ends by itself */
  expires_at?: string | number | null;
  /** seconds until it ends, in place of expires_at */
  ttl_s?: number | null;
  [column: string]: unknown;
}

/** What became of a subscription. */
export interface SubscriptionOutcome {
  status: "created" | "deleted" | "refused" | "replaced" | "unchanged";
  subscription_id?: string | null;
  etag?: string | null;
  /** the first message for which the change counts */
  from_seq?: number | null;
  /** expected, by all logged messages; of one alone in a request */
  matches_per_day?: number | null;
  /** what its backfill finds; as matches_per_day */
  backfill?: Backfilled | null;
  /** its query as it was understood */
  read_as?: string | null;
  line?: number | null;
  reason?: string | null;
  detail?: string | null;
  column?: string | null;
  value?: unknown;
}

/** When the owner of a subscription is told of its updates, by webhooks and `/v1/told`. */
export interface Tell {
  /** set times of the day, each with a digest: 08:00 */
  at?: string | Array<string> | null;
  /** whose wall clock counts, such as Europe/Berlin; UTC without */
  zone?: string | null;
  /** from when to when nothing is told: 22:00, 07:00 */
  quiet?: Array<string> | null;
  /** updates told one by one; the rest is a digest */
  most_an_hour?: number | null;
  /** Jaccard similarity to one of the last 100 from which a message is not told */
  similar?: number | null;
  paused?: boolean | null;
}

/** A field of recent messages that no attribute is declared for. */
export interface UndeclaredField {
  name: string;
  /** of nearly all its values */
  type: "number" | "category" | "time" | "categories";
  /** of recent messages */
  share: number;
  /** values, to a key with the scope admin */
  samples?: Array<string> | null;
}

/** One `match`, `enter`, `leave` or `change`; `id` is its place in the stream, for `since=`. */
export interface Update {
  id: string;
  change: "change" | "enter" | "leave" | "match";
  subscription_id: string;
  message_id: string;
  seq: number;
  as_of: number;
  /** knn: the distance, metres on the earth (with --distance plane a part of the world's side); topk: 0 to 1; decay: a logarithm that grows with the time of the message, so that only which is larger counts; skyline: 0 to 1, how near to the middle of the region; null for a match of boolean */
  score: number | null;
  text: string;
  lon: number;
  lat: number;
  /** in a stream of objects, the object that the message is a version of */
  object_id?: string | null;
  /** a match of a message that came before the subscription */
  backfill?: boolean;
  /** of the message, for a subscription with `include` */
  attributes?: Record<string, unknown>;
  /** of the version before, those of `attributes` that were different */
  previous?: Record<string, unknown>;
}

/** A value that a message was taken without, since it does not fit its attribute. */
export interface Warned {
  column: string;
  /** what the row has there, as text where it may be long */
  value: unknown;
  why: string;
}
