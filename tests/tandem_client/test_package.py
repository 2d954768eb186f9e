"""The package alone: its names, and what its parts load."""

from __future__ import annotations

import subprocess
import sys

import tandem_client


def test_every_public_name_is_there():
    assert not [name for name in tandem_client.__all__ if not hasattr(tandem_client, name)]
    assert not hasattr(tandem_client, "no_such_name")


def test_the_engine_takes_the_errors_without_grpc():
    check = "import engine.errors, sys; sys.exit('grpc' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_messages_are_registered_under_the_name_of_the_package():
    """A program may have a `protos/inference.proto` of its own."""
    from tandem_client.protos import error_details_pb2, inference_pb2

    for module in (error_details_pb2, inference_pb2):
        assert module.DESCRIPTOR.name.startswith("tandem_client/")
