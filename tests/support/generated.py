"""Made-up messages as fast as they are taken: as batches, and from a clock spout."""

from collections.abc import Collection

from matching.space import Space
from matching.window import Window
from spouts.cutting import Cutter, MessageSpout, read_all
from spouts.generated import GeneratedSource, MessageRecipe


class GeneratedSpout(MessageSpout):
    """Clock spout over a `GeneratedSource`; without a limit it never ends."""

    def __init__(self, recipe: MessageRecipe, window: Window, space: Space, batch: int, limit: int | None = None):
        super().__init__(window, batch, limit)
        self.recipe, self.space = recipe, space

    def open_source(self):
        return GeneratedSource(self.recipe, self.cutter.window, self.space)


def generate_messages(
    recipe: MessageRecipe, window: Window, space: Space, batch: int, limit: int, kind_columns: Collection[str] = ()
):
    """The batches that a spout with these settings emits."""
    return read_all(GeneratedSource(recipe, window, space, kind_columns), Cutter(window, batch, limit))
