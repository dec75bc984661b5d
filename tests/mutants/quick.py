"""A pytest plugin for `tests.mutants`: where a property fails, that it does is all that is asked; nothing is shrunk."""

from hypothesis import Phase, settings

settings.register_profile("mutants", phases=[Phase.explicit, Phase.generate], database=None)
settings.load_profile("mutants")
