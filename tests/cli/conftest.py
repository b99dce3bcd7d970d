import pytest

from tvbo.cli import main


@pytest.fixture
def tvbo(capsys):
    """Run a command; give exit code, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return stop.value.code, output.out, output.err

    return run
