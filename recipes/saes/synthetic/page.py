"""The page of the known model: figures of each autoencoder, and which scores the true one wins."""

from collections.abc import Mapping, Sequence

from recipes.saes.synthetic import world
from recipes.saes.synthetic.encoders import TRUE
from recipes.saes.synthetic.figures import SCORES, Figures, lead

from poolbench_driver.pages.text import paragraph, table

_MODEL = (
    f"A state is a sum of few of {world.NUM_FEATURES} random unit directions in {world.WIDTH} dimensions, and noise. "
    f"Each of {world.NUM_SUBJECTS} subjects has {world.NUM_ROWS} pairs of stories of {world.NUM_TOKENS} tokens, which "
    f"differ in one true feature: it is active on {100 * world.HIGH:.0f} % of the tokens of the first story, and on "
    f"{100 * world.LOW:.0f} % of those of the second. Half of these features have a child, which is active on half of "
    "the tokens where its parent is."
)
_ENCODERS = (
    ("true", "each feature is one true direction"),
    ("half", "half of the true directions are missing"),
    ("split", "each true direction is two features, of which a random plane chooses one on each token"),
    ("absorbed", "a parent is silent where its child is active, and the child stands for both"),
    ("rotated", "each two true directions are replaced by their normalised sum and difference"),
    ("random", "random directions with the width of the true autoencoder, and its L0 on each token"),
    ("coordinates", "the coordinates of the states, with both signs"),
)


def page(drawn: Sequence[Mapping[str, Figures]]) -> str:
    """Return the page from the figures of several draws."""
    others = [name for name in drawn[0] if name != TRUE]
    leads = {score: {name: lead(drawn, score, name) for name in others} for score in SCORES}
    short = {score: [name for name, (_, low, _) in margins.items() if low <= 0] for score, margins in leads.items()}
    parts = [
        "# CE-Bench: a check with known features",
        paragraph(
            "An autoencoder that has the true features must win every score that claims to measure how interpretable "
            f"an autoencoder is. `python -m recipes.saes.synthetic` draws {len(drawn)} models with known features and "
            "prints this page."
        ),
        "## Which scores the true features win",
        _verdict(short),
        paragraph(
            "The table shows by how much `true` is above each other autoencoder: the mean over draws of the model, "
            "with its 95 % t interval. A score is won if all intervals are above 0. The last column names the "
            "autoencoders where this does not hold."
        ),
        table(
            ["protocol", "score", *others, "not beaten"],
            [[*score, *map(_signed, margins.values()), ", ".join(short[score])] for score, margins in leads.items()],
        ),
        "## The model and the autoencoders",
        paragraph(_MODEL),
        "\n".join(paragraph(f"- `{name}`: {what}.", "  ") for name, what in _ENCODERS),
    ]
    return "\n\n".join(parts) + "\n"


def _verdict(short: Mapping[tuple[str, str], Sequence[str]]) -> str:
    won = [_named(score) for score, names in short.items() if not names]
    lost = [score for score, names in short.items() if names]
    lines = [f"The true features win {len(won)} of {len(short)} scores: {', '.join(won) or 'none'}."]
    for name, why in (
        ("split", "Splitting each feature makes an autoencoder wider, and the published scores grow with the width."),
        ("half", "Leaving features out makes one narrower, and division by the square root of the width rewards that."),
    ):
        against = [_named(score) for score in lost if name in short[score] and not score[1].endswith(".excess")]
        if against:
            lines.append(f"`{name}` is not beaten in {', '.join(against)}. {why}")
    excess = [_named(score) for score in lost if score[1].endswith(".excess")]
    if excess:
        lines.append(
            f"{', '.join(excess)} is free of the width and still not won. With I2 = 0 its difference is dominated by "
            "the mean of both stories, which does not depend on what tells them apart."
        )
    return "\n\n".join(map(paragraph, lines))


def _named(score: tuple[str, str]) -> str:
    return f"`{score[1]}` ({score[0]})"


def _signed(margin: tuple[float, float, float]) -> str:
    mean, low, high = margin
    return f"{mean:+.3f} ({low:+.3f} to {high:+.3f})"
