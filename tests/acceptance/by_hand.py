"""A worker made by hand: it enrols and says its turns over plain HTTP, so that a test decides each word."""

from __future__ import annotations

import base64
import json
import secrets
import uuid
from typing import Any

from eth_account import Account

from swarm.content.cid import raw_cid
from swarm.content.manifest import Manifest, encode_manifest
from swarm.signing import enrolment_digest, parse_join_link, peer_id_from_seed, sign_enrolment
from tests.acceptance.harness import Door, Reply

HELLO = {"version": "0.1.0", "kinds": {"noop": "1"}, "slots": 8}


class HandWorker:
    """A worker without a process.

    Args:
        link: the join link of the root.
    """

    def __init__(self, link: str) -> None:
        invitation = parse_join_link(link)
        stranger = Door(invitation.url, None)
        settings = json.loads(stranger.call("GET", "/settings").raw)
        eth_key, peer_seed = secrets.token_bytes(32), secrets.token_bytes(32)
        self.address: str = Account.from_key(eth_key).address
        self.boot = uuid.uuid4().hex
        instance = uuid.uuid4().hex
        digest = enrolment_digest(
            challenge=settings["data"]["challenge"],
            network_id=settings["data"]["swarm"]["network_id"],
            root_peer=settings["signature"]["key"],
            address=self.address,
            payout=self.address,
            instance=instance,
        )
        signature, peer_signature = sign_enrolment(eth_key, peer_seed, digest)
        enrolled = stranger.call(
            "POST",
            "/v1/enrolments",
            {
                "challenge": settings["data"]["challenge"],
                "address": self.address,
                "payout": self.address,
                "instance": instance,
                "peer_id": peer_id_from_seed(peer_seed),
                "signature": signature,
                "peer_signature": base64.b64encode(peer_signature).decode(),
                "hello": HELLO,
            }
            | ({"invite": invitation.invite} if invitation.invite else {}),
        ).ok()
        stranger.close()
        self.door = Door(invitation.url, enrolled["api_key"])
        self._turns = 0

    def turn(self, **said: Any) -> dict[str, Any]:
        """Say one turn; returns the answer."""
        self._turns += 1
        hello = {"hello": HELLO} if self._turns == 1 else {}
        body = {"boot": self.boot, "n": self._turns, "free": 0} | hello | said
        answer: dict[str, Any] = self.door.call("POST", "/v1/turns", body).ok()
        return answer

    def claim(self, task: str) -> Reply:
        return self.door.call("POST", f"/v1/tasks/{task}/claim", {})

    def complete(self, task: str, fence: int) -> Reply:
        """Report a result of one's own for a task."""
        body = encode_manifest(Manifest(task=task, worker=self.address, kind="noop"))
        return self.door.call(
            "POST",
            f"/v1/tasks/{task}/complete",
            {"fence": fence, "cid": raw_cid(body), "manifest": base64.b64encode(body).decode()},
        )
