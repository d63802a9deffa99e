"""How ``swarm-root --help`` reads: commands and options in sections, examples at the end.

Which section something is in stands here, in the order of the help. What no section names comes at the end of its list,
so nothing is ever hidden by being forgotten. This module knows no command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

__all__ = ["COMMAND_SECTIONS", "OPTION_SECTIONS", "Command", "Sections"]

#: Section → command → what it does, in as few words as fit beside it.
COMMAND_SECTIONS: Final[Mapping[str, Mapping[str, str]]] = {
    "A root": {
        "run": "Run the root until it is told to stop.",
        "init": "Make a data directory with a new swarm's key.",
        "migrate": "Bring the ledger's tables up to date; copy it and back.",
        "gc": "Delete stored blocks that no result names.",
    },
    "Who may do what": {
        "invite": "Print a join link that admits workers.",
        "keys": "Give, list and revoke keys of requesters and operators.",
        "revoke": "Shut an owner or a worker out, at once.",
        "admit": "Let a revoked worker enrol again.",
    },
    "What happens": {
        "alerts": "List what is wrong now, and what to do.",
        "acts": "List what operators did, and why.",
        "policy": "Show quarantines, profiles, success by version.",
        "queue": "Show what waits; write it to a file, take one in.",
    },
    "By hand": {
        "pause": "Grant nothing: of the swarm, a host or a job.",
        "resume": "End a pause.",
        "quarantine": "Keep a worker off a host for a while.",
        "unquarantine": "End a quarantine.",
        "apart": "One worker of a network at a time for a host.",
        "approve-version": "Grant tasks to pinned versions only.",
        "fail": "Fail tasks.",
    },
    "Paying": {
        "wallet": "Make, import and show the key that pays.",
        "contract": "Deploy the contract that holds the money; look at it.",
        "deposit": "Raise what the contract holds for rewards.",
        "withdraw": "Take out what the contract holds free.",
        "channel": "Show channels paid by vouchers; take back what is unused.",
    },
}

#: Section → settings of ``swarm-root run``, by their fields.
OPTION_SECTIONS: Final[Mapping[str, Sequence[str]]] = {
    "The root": ("data", "name", "ledger", "ipfs", "max_disk", "contact", "allow_private"),
    "The door": ("bind", "public_url", "tls_cert", "tls_key", "trusted_proxy", "admission", "allow"),
    "What is granted": (
        "mode",
        "host_rate",
        "swarm_rate",
        "pacing",
        "tier",
        "newcomer_budget",
        "region_hours",
        "first_lease",
        "intake",
        "receipts",
    ),
    "Peers": ("p2p", "p2p_listen", "dht", "mdns", "psk"),
    "Paying": ("rpc", "public_rpc", "contract", "chain_key", "passphrase_file", "finality", "max_fee"),
    "Alerts": (
        "alert_webhook",
        "alert_secret_file",
        "alert_success",
        "alert_queue_age",
        "alert_expiries",
        "alert_blocks",
    ),
}


class Command(click.Command):
    """A command with examples at the end of its help.

    Args:
        examples: what one wants, and what one types.
        option_sections: section → parameters by name; the others follow under "Options".
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[tuple[str, str]] = (),
        option_sections: Mapping[str, Sequence[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.option_sections = option_sections or {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section."""
        records = {one.name: record for one in self.get_params(ctx) if (record := one.get_help_record(ctx)) is not None}
        for title, names in self.option_sections.items():
            with formatter.section(title):
                formatter.write_dl([records.pop(name) for name in names])
        with formatter.section("Options"):
            formatter.write_dl(list(records.values()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        with formatter.section("Examples"):
            for wanted, typed in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}# {wanted}\n")
                formatter.write(f"{'':{formatter.current_indent}}{typed}\n")


class Sections(click.Group):
    """A group whose help lists the commands by ``COMMAND_SECTIONS``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, in the order of the sections."""
        named = [name for section in COMMAND_SECTIONS.values() for name in section]
        return [*named, *(name for name in super().list_commands(ctx) if name not in named)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section, then what no section names."""
        told = {name: summary for section in COMMAND_SECTIONS.values() for name, summary in section.items()}
        width = max(len(name) for name in self.commands)
        for title, section in COMMAND_SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", summary) for name, summary in section.items()])
        rest = [(name, self.commands[name].get_short_help_str()) for name in self.commands if name not in told]
        if rest:
            with formatter.section("Commands"):
                formatter.write_dl(rest)
