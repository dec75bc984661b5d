"""What commands find around them: settings of this machine, which no test may see."""

import os
from pathlib import Path

import pytest


def without_settings(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Go to a folder, without a settings file there and without a variable of ours in the environment."""
    for variable in list(os.environ):
        if variable.startswith("SKYRAY_") and variable != "SKYRAY_KERNEL_CACHE":
            monkeypatch.delenv(variable)
    monkeypatch.chdir(folder)
