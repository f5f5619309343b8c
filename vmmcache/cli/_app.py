"""The group of commands, and what happens to errors on the way out."""

from __future__ import annotations

import importlib
import sys
from typing import Final

import click

from vmmcache.cli._output import EXIT_NO, EXIT_WRONG_USE, emit_json, error_object
from vmmcache.errors import ConfigError, VmmCacheError

__all__ = ["main"]

# Name of a command -> its module, which is imported when the command runs: `probe` has to be quick and needs no torch.
_COMMANDS: Final = {
    "bench": "vmmcache.cli.bench",
    "demo": "vmmcache.cli.demo",
    "map": "vmmcache.cli.map",
    "plan": "vmmcache.cli.plan",
    "probe": "vmmcache.cli.probe",
    "selftest": "vmmcache.cli.selftest",
}
_HELP: Final = {
    "bench": "Measure what things cost on this machine.",
    "demo": "Show the whole life of an elastic KV cache on this machine.",
    "map": "Show the address space of a process.",
    "plan": "Say what fits into a quota of memory, and what binds.",
    "probe": "Say what this host can do, why not, and the cure.",
    "selftest": "Run the conformance suite on a live device.",
}


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(_COMMANDS[cmd_name]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table, so that --help imports no command.
        with formatter.section("Commands"):
            formatter.write_dl([(name, _HELP[name]) for name in self.list_commands(ctx)])


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"vmmcache {version('vmmcache')}")
        ctx.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, callback=_version, expose_value=False, is_eager=True, help="Print the version."
)
def _app() -> None:
    """Elastic KV-cache memory on GPU virtual memory management.

    Exit status: 0 done, 1 the answer is no, 2 wrong use.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        status = _app.main(arguments, prog_name="vmmcache", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(EXIT_WRONG_USE)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except (click.ClickException, VmmCacheError) as error:
        if "--json" in arguments:
            emit_json(error_object(error))
        elif isinstance(error, click.ClickException):
            error.show()
        else:
            click.echo(f"vmmcache: {error}", err=True)
            for note in getattr(error, "__notes__", ()):
                click.echo(f"  {note}", err=True)
        wrong_use = isinstance(error, click.ClickException | ConfigError)
        sys.exit(EXIT_WRONG_USE if wrong_use else EXIT_NO)
    sys.exit(status if isinstance(status, int) else 0)
