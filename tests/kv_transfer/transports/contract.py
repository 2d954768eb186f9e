"""The contract of a channel, as tests: what both ends may rely on whatever the transport."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kv_transfer.errors import ChannelBroken
from tests.kv_transfer.transports.channel_rig import blank, filled, receive, two_ahead


class ChannelContract:
    """Tests that every transport passes; a subclass parametrizes `channels` with its names."""

    def test_bytes_arrive_in_order_and_whole(self, channels):
        sender, receiver = channels
        sizes = [1, 7, 4096, 3 << 20, 1, 100_003]
        with ThreadPoolExecutor(1) as thread:
            sending = thread.submit(
                lambda: [sender.send(filled(sender, size, size))(5.0) for size in sizes]
            )
            for size in sizes:
                assert torch.equal(receive(receiver, size), filled(sender, size, size).cpu())
            sending.result()

    def test_both_directions(self, channels):
        sender, receiver = channels
        with ThreadPoolExecutor(1) as thread:
            thread.submit(receiver.send(filled(receiver, 1000, 1)), 5.0)
            assert torch.equal(receive(sender, 1000), filled(sender, 1000, 1).cpu())

    def test_a_part_of_a_larger_buffer(self, channels):
        sender, receiver = channels
        with ThreadPoolExecutor(1) as thread:
            thread.submit(sender.send(filled(sender, 5000, 2)[:3000]), 5.0)
            data = receive(receiver, 3000, buffer_bytes=5000)
        assert torch.equal(data, filled(sender, 5000, 2)[:3000].cpu())

    def test_a_message_stays_unchanged_until_it_is_read(self, channels):
        """Two messages are read in turn while both are kept, as by a thread that copies."""
        sender, receiver = channels
        with ThreadPoolExecutor(1) as thread:
            messages = [(sender.send, filled(sender, 5000, n)) for n in (1, 2)]
            sending = thread.submit(two_ahead, messages)
            receipts = [receiver.receive(blank(receiver, 5000), 5000) for _ in range(2)]
            arrivals = [receipt(5.0) for receipt in receipts]
            for number, arrived in enumerate(arrivals, 1):
                assert torch.equal(arrived.data.cpu(), filled(sender, 5000, number).cpu())
                arrived.taken()
            sending.result()

    def test_messages_posted_ahead_arrive_in_order(self, channels):
        sender, receiver = channels
        sizes = [3000, 70_000, 3000, 1 << 20, 5]
        buffers = [blank(receiver, size) for size in sizes]
        with ThreadPoolExecutor(1) as thread:
            sending = thread.submit(two_ahead, [(sender.send, filled(sender, n, n)) for n in sizes])
            calls = [(receiver.receive, *each) for each in zip(buffers, sizes, strict=True)]
            received = two_ahead(calls)
            sending.result()
        for data, size in zip(received, sizes, strict=True):
            assert torch.equal(data, filled(sender, size, size).cpu())

    def test_a_sender_of_one_at_a_time_meets_receives_posted_ahead(self, channels):
        sender, receiver = channels
        with ThreadPoolExecutor(1) as thread:
            sending = thread.submit(
                lambda: [sender.send(filled(sender, 3000, n))(2.0) for n in range(5)]
            )
            calls = [(receiver.receive, blank(receiver, 3000), 3000) for _ in range(5)]
            received = two_ahead(calls)
            sending.result()
        for number, data in enumerate(received):
            assert torch.equal(data, filled(sender, 3000, number).cpu())

    def test_a_failure_ends_all_that_was_posted(self, channels):
        _, receiver = channels
        waits = [receiver.receive(blank(receiver, 100), 100) for _ in range(2)]
        started = time.monotonic()
        for wait in waits:
            with pytest.raises(ChannelBroken):
                wait(0.3)
        assert time.monotonic() - started < 20

    def test_a_receive_without_a_send_ends_in_time_and_breaks_the_channel(self, channels):
        _, receiver = channels
        started = time.monotonic()
        with pytest.raises(ChannelBroken):
            receiver.receive(blank(receiver, 100), 100)(0.3)
        assert 0.2 < time.monotonic() - started < 20
        with pytest.raises(ChannelBroken):
            receiver.receive(blank(receiver, 100), 100)(0.3)

    def test_nothing_works_after_close(self, channels):
        sender, _ = channels
        sender.close()
        with pytest.raises(ChannelBroken):
            sender.send(filled(sender, 10, 0))(0.3)
