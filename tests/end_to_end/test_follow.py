"""`skyray run --follow` before there is anything to follow: it says what it waits for, and runs once that is there."""

import json
import signal

from tests.support.processes import Command, small_run


def test_run_waits_for_a_folder_that_is_not_there_yet(tmp_path):
    arguments = small_run(tmp_path, 300, 50)
    with Command([*arguments, "--executor", "local", "--json"]) as command:
        code, printed, said = command.finish()
    assert code == 0, said
    wanted = json.loads(printed)["digest"]
    etl, hidden = tmp_path / "etl", tmp_path / ".etl.partial"
    etl.rename(hidden)
    with Command([*arguments, "--executor", "local", "--json", "--follow", "--overwrite"]) as command:
        command.await_(lambda: "waiting" in command.read()[1])
        assert str(etl) in command.read()[1]
        hidden.rename(etl)
        code, printed, said = command.finish()
    assert code == 0 and json.loads(printed)["digest"] == wanted, said


def test_run_that_waits_is_ended_by_an_interrupt(tmp_path):
    arguments = small_run(tmp_path, 20, 10)
    (tmp_path / "etl").rename(tmp_path / "elsewhere")
    with Command([*arguments, "--follow"]) as command:
        command.await_(lambda: "waiting" in command.read()[1])
        command.process.send_signal(signal.SIGINT)
        code, _, said = command.finish(30)
        assert code == 130 and "Traceback" not in said, said
        command.assert_nothing_left()
    assert not (tmp_path / "out").exists()
