"""Signatures of requests to the launcher: who can merely write to Redis cannot make one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from protos.wire.secret import ClusterSecret


@dataclass(frozen=True, slots=True)
class RequestSeal:
    """Signs requests to one run of `tandem serve`; `launcher` is that run's name."""

    secret: ClusterSecret
    launcher: str

    def of_stop(self) -> str:
        """The signature of a stop request."""
        return self.secret.sign("stop", self.launcher.encode()).hex()

    def is_stop(self, signature: str) -> bool:
        """Whether this is the signature of a stop request."""
        return self._verify(signature, "stop")

    def of_rollout(self, content: str) -> str:
        """The signature of a rollout with that content."""
        return self.secret.sign("rollout", self.launcher.encode(), content.encode()).hex()

    def is_rollout(self, signature: str, content: str) -> bool:
        """Whether this is the signature of a rollout with that content."""
        return self._verify(signature, "rollout", content.encode())

    def _verify(self, signature: str, subject: str, *parts: bytes) -> bool:
        try:
            signed = bytes.fromhex(signature)
        except ValueError:
            return False
        return self.secret.verify(signed, subject, self.launcher.encode(), *parts)
