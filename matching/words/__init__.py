"""Words of many texts at once: the tokeniser of `matching.text` as a kernel, and the vectors of a block of messages.

    words = MessageWords(vocabulary)
    cut = words.cut(Names.of(["ramen is open", "no coffee"]))  # terms in order of appearance, as numbers
    words.new_terms(cut)                                       # terms without an id, in order of first appearance
    weigh(words.terms(cut), vocabulary.idf)                    # ascending term ids, counts, unit weights

`matching.text.cut_words` decides what a term is. The kernel gives the same terms or says that it is not sure of a text,
which `cut_words` then cuts. `characters` has the tables of the kernel, `cutting` the kernel and its table of tokens,
`message_words` the ids and weights of tokens by a vocabulary.
"""
