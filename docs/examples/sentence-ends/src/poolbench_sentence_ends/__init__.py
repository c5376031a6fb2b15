"""An example plug-in: one pooling strategy."""

from poolbench.pooling import STRATEGIES, TokenContext, Weights


@STRATEGIES.register(
    "Y2_sentence_ends",
    version=1,
    family="linguistic",
    summary="mean over the tokens of the last words of each sentence, punctuation aside",
    needs=("annotation",),
    reference="an example; under causal attention these tokens have read their sentence",
    board="extended",
)
def sentence_ends(context: TokenContext, *, num_words: int = 1) -> Weights:
    """Average the tokens of the last `num_words` words of every sentence; A1 if there is no word."""
    words = context.annotation()
    members: dict[int, list[int]] = {}
    for index, number in enumerate(words.sentence):
        if words.upos[index] != "PUNCT":
            members.setdefault(int(number), []).append(index)
    word_indices = {index for indices in members.values() for index in indices[-num_words:]}
    return context.mean_of(context.real_tokens_of([index in word_indices for index in range(len(words.sentence))]))
