"""Each kind of handling of a failure: the code that does it, and a test that fails without it.

`tests.chaos.without` takes the code away and runs the test.
"""

from __future__ import annotations

from dataclasses import dataclass

_ROUTER = "cluster/router"
_FAILOVER, _CHOICE = f"{_ROUTER}/failover.py", f"{_ROUTER}/choice_stream.py"
_SILENT, _HEALTHY = (
    "cluster/discovery/silent_replicas.py",
    "cluster/discovery/healthy_replicas.py",
)
_WRITER, _SCRIPTS = "cluster/journal/writer.py", "cluster/journal/scripts.py"
_RESUMPTION, _WATCH = "tandem_client/resumption.py", "tandem_client/silence_watch.py"
_T_FAILOVER = f"tests/{_ROUTER}/test_failover.py"
_T_JOURNAL = "tests/cluster/journal"
_T_WRITER, _T_TAKEOVER = f"{_T_JOURNAL}/test_writer.py", f"{_T_JOURNAL}/test_takeover.py"
_T_REDIS_AWAY = f"{_T_JOURNAL}/test_redis_away.py"
_T_SILENT = "tests/cluster/discovery/test_silent_replicas.py"
_T_HEALTHY = "tests/cluster/discovery/test_healthy_replicas.py"
_T_HEARTBEAT = "tests/cluster/discovery/test_heartbeat.py"
_T_RESUMABLE = "tests/integration/test_resumable.py"
_T_RESUMPTION = "tests/tandem_client/test_resumption.py"
_T_WATCH = "tests/tandem_client/test_silence_watch.py"
_T_DRAIN = "tests/integration/test_drain.py"
_T_KV = "tests/kv_transfer"


@dataclass(frozen=True)
class Handling:
    """`code` stands once in `file`. With `without` in its place the handling is gone."""

    name: str
    file: str
    code: str
    without: str
    test: str


def _handling(name: str, file: str, change: tuple[str, str], test: tuple[str, str]) -> Handling:
    return Handling(name, file, *change, "::".join(test))


HANDLINGS = (
    # A replica is lost, or seems to be.
    _handling(
        "silent replica",
        _SILENT,
        ("if self._calls.cut(record.address, reason):", "if False:"),
        (_T_SILENT, "test_calls_end_where_neither_reports_nor_events_come"),
    ),
    _handling(
        "starved replica",
        _SILENT,
        ("max(_LEAST_TICKS, 2 * self._longest)", "_LEAST_TICKS"),
        (_T_SILENT, "test_a_replica_that_spoke_again_gets_twice_its_longest_silence"),
    ),
    _handling(
        "silent replica without another",
        _SILENT,
        ("if silence.lost and self._replaceable(record):", "if silence.lost:"),
        (_T_SILENT, "test_calls_go_on_until_another_replica_can_take_them"),
    ),
    _handling(
        "suspect after a broken call",
        _HEALTHY,
        ("= now + SUSPECT_S", "= now"),
        (_T_HEALTHY, "test_a_suspect_gets_nothing_where_another_replica_is_trusted"),
    ),
    _handling(
        "suspect that reports again",
        _HEALTHY,
        ("return [one for one in members if self._is_back(one)]", "return []"),
        (_T_HEALTHY, "test_a_pool_of_suspects_trusts_the_ones_that_report_again"),
    ),
    _handling(
        "reassignment before the first token",
        _FAILOVER,
        ("except (ReplicaLost, TransferFailed) as error:", "except () as error:"),
        (_T_FAILOVER, "test_before_its_first_token_a_choice_begins_anew_on_another_pair"),
    ),
    _handling(
        "reassignment of a stream",
        "cluster/admission/reassigner.py",
        (
            "plan = self._resume(request, now, without) if streaming else self._plan(request, now)",
            "plan = self._plan(request, now)",
        ),
        (_T_FAILOVER, "test_later_one_decode_replica_goes_on_behind_what_was_sent"),
    ),
    _handling(
        "refusal leads on",
        _FAILOVER,
        ("losses.refused.add(assignment.plan.pair.decode.id)", "pass"),
        (_T_FAILOVER, "test_a_choice_that_a_full_replica_refused_goes_to_another_at_once"),
    ),
    _handling(
        "refusal of a stream that has begun",
        _FAILOVER,
        (
            "if not losses.count or time.monotonic() >= losses.last_s + self._timeout_s:\n"
            "                    raise\n",
            "if True:\n                    raise\n",
        ),
        (_T_FAILOVER, "test_a_full_replica_does_not_end_a_choice_that_has_begun"),
    ),
    _handling(
        "bound on losses",
        _FAILOVER,
        ("if losses.count > MOST_LOSSES or not self._timeout_s:", "if not self._timeout_s:"),
        (_T_FAILOVER, "test_losses_have_a_bound"),
    ),
    _handling(
        "cause behind an echo",
        _CHOICE,
        ("if isinstance(error, TransferFailed) and not over:", "if False:"),
        (
            f"tests/{_ROUTER}/test_choice_stream.py",
            "test_the_echo_of_a_failure_waits_for_the_failure",
        ),
    ),
    _handling(
        "stream moves on to a fresh replica",
        _FAILOVER,
        ("            if moved:\n", "            if False:\n"),
        (_T_FAILOVER, "test_a_stream_that_waits_to_be_computed_goes_on_to_a_fresh_replica"),
    ),
    _handling(
        "time to compute a lost stream again",
        "decode_pool/recompute_share.py",
        ("self.slice_s += seconds", "pass"),
        (
            "tests/decode_pool/test_recompute_share.py",
            "test_the_slices_take_as_long_as_the_steps_but_for_a_layer",
        ),
    ),
    _handling(
        "stalled engine",
        "cluster/replica/status.py",
        (
            "return self._parts.worker.stalled(due=self._parts.decode.scheduler.streams > 0)",
            "return False",
        ),
        ("tests/integration/test_health.py", "test_a_stalled_engine_is_unhealthy_and_gets_no_work"),
    ),
    _handling(
        "step that raises",
        "decode_pool/loop.py",
        ("            self._fail(step.spans, error)\n", "            raise\n"),
        (
            "tests/decode_pool/test_loop_streams.py",
            "test_a_failed_step_spares_a_request_whose_text_ended_beside_it",
        ),
    ),
    # KV on its way.
    _handling(
        "silent link",
        "kv_transfer/links/control_stream.py",
        ("if self._silent_s >= limit_s:", "if False:"),
        (f"{_T_KV}/links/test_rogue_senders.py", "test_a_silent_sender_counts_as_dead"),
    ),
    _handling(
        "pause of this process",
        "kv_transfer/links/control_stream.py",
        ("min(now - last, 1.5 * period_s)", "now - last"),
        (
            f"{_T_KV}/links/test_links.py",
            "test_a_process_that_was_itself_asleep_does_not_blame_its_peer",
        ),
    ),
    _handling(
        "corrupted frame",
        "kv_transfer/links/frame_receiver.py",
        ('if found == "corrupted":', "if False:"),
        (f"{_T_KV}/test_faults.py", "test_a_corrupted_frame_is_never_written_and_the_link_lives"),
    ),
    _handling(
        "quarantine of buffers",
        "kv_transfer/frames/staging.py",
        ("self._pool.quarantined += self._out", "pass"),
        (
            f"{_T_KV}/test_faults.py",
            "test_staging_is_bounded_and_the_error_names_the_quarantined_buffers",
        ),
    ),
    # The directory.
    _handling(
        "lease loss",
        "cluster/discovery/redis_directory.py",
        (
            "self._records.written(key, record), px=self._lease_ms)",
            "self._records.written(key, record))",
        ),
        (_T_HEARTBEAT, "test_a_replica_that_dies_leaves_the_watch_when_its_lease_ends"),
    ),
    _handling(
        "outage of Redis",
        "cluster/discovery/heartbeat.py",
        (
            "        except Unavailable as error:\n            self._roster.unreadable",
            "        except () as error:\n            self._roster.unreadable",
        ),
        (_T_HEARTBEAT, "test_an_outage_is_survived_and_logged_once"),
    ),
    _handling(
        "Redis that comes back empty",
        "cluster/replica_record.py",
        ("if anew or asleep:", "if asleep:"),
        (_T_HEARTBEAT, "test_data_lost_between_two_readings_keep_all_members"),
    ),
    _handling(
        "embedded Redis is started again",
        "cluster/deploy/stop_request.py",
        ("await asyncio.to_thread(redis.revive)", "pass"),
        (
            "tests/cluster/deploy/test_launcher_parts.py",
            "test_a_redis_that_cannot_be_started_anew_ends_nothing",
        ),
    ),
    # The journal of resumable streams.
    _handling(
        "journal suspension",
        _WRITER,
        (
            "            stream.suspend()\n            if stream.closed:\n",
            "            if stream.closed:\n",
        ),
        (_T_REDIS_AWAY, "test_streams_go_on_while_redis_stands_still"),
    ),
    _handling(
        "journal that was lost",
        _WRITER,
        ("                stream.restart()\n", ""),
        (_T_REDIS_AWAY, "test_a_redis_that_was_killed_gets_all_streams_again"),
    ),
    _handling(
        "pause of a router",
        _WRITER,
        ("if late_s < _STOOD_STILL_S or self._excuses > _EXCUSES:", "if True:"),
        (_T_REDIS_AWAY, "test_a_pause_of_this_process_suspends_nothing"),
    ),
    _handling(
        "fence",
        _SCRIPTS,
        ("local whole = current == fence and redis.call", "local whole = redis.call"),
        (_T_WRITER, "test_a_router_that_comes_back_sends_and_writes_nothing_more"),
    ),
    _handling(
        "lease of an owner",
        _SCRIPTS,
        (
            "if known[1] ~= ARGV[1] and redis.call('EXISTS', ARGV[2] .. known[1]) == 1 then",
            "if false then",
        ),
        ("tests/cluster/journal/test_store.py", "test_only_a_dead_owners_stream_is_taken_over"),
    ),
    _handling(
        "takeover",
        f"{_ROUTER}/resumable/takeover.py",
        ("if record.model_identity != self._identity:", "if True:"),
        (_T_RESUMABLE, "test_a_stream_goes_on_on_another_router"),
    ),
    _handling(
        "no takeover just after an outage",
        _WRITER,
        ("if held or self._loop.time() - self._well_since_s < self._store.lease_s:", "if held:"),
        (_T_TAKEOVER, "test_no_stream_is_taken_just_after_redis_came_back"),
    ),
    _handling(
        "orphan release",
        _WRITER,
        ('if outcome in ("", "taken") and stream_id not in self._streams:', "if False:"),
        (_T_TAKEOVER, "test_a_stream_that_was_taken_and_not_adopted_can_be_taken_again"),
    ),
    _handling(
        "KV adoption",
        f"{_ROUTER}/phases.py",
        ("self._placement.learn(record, state.prepared.digests(state.output[:-1]))", "pass"),
        (_T_RESUMABLE, "test_the_replica_that_has_the_kv_goes_on"),
    ),
    _handling(
        "cancel at the owner",
        _WRITER,
        ("self._on_cancel(stream.stream_id)", "pass"),
        (_T_WRITER, "test_a_cancel_reaches_the_owner_from_anywhere"),
    ),
    _handling(
        "cancel of a dead owner's stream",
        f"{_ROUTER}/resumable/takeover.py",
        ("if found.cancelled:", "if False:"),
        (
            f"tests/{_ROUTER}/resumable/test_takeover.py",
            "test_a_stream_that_was_to_be_cancelled_is_cancelled_with_its_takeover",
        ),
    ),
    _handling(
        "hand-over by a router that ends",
        f"{_ROUTER}/resumable/streams.py",
        ("            await self._writer.leave()\n", "            pass\n"),
        (_T_RESUMABLE, "test_a_router_that_ends_hands_its_streams_over"),
    ),
    _handling(
        "work without a client",
        f"{_ROUTER}/resumable/streams.py",
        ("if alone_s >= most_s:", "if False:"),
        (_T_RESUMABLE, "test_work_without_listeners_is_cancelled_after_a_while"),
    ),
    _handling(
        "client that leaves a resumed stream",
        f"{_ROUTER}/resumable/streams.py",
        (
            "            events.close()\n            await end([reading])\n",
            "            events.close()\n",
        ),
        (_T_RESUMABLE, "test_a_client_that_leaves_a_resumed_stream_leaves_no_reader"),
    ),
    # The client, and Ray on one machine.
    _handling(
        "client resumes",
        _RESUMPTION,
        ("        if wait_s is None:\n", "        if True:\n"),
        (_T_RESUMPTION, "test_a_journal_that_is_away_for_a_moment_is_waited_for"),
    ),
    _handling(
        "silent router",
        _WATCH,
        ("if self._waiting and self._quiet_s >= self._limit_s:", "if False:"),
        (_T_RESUMPTION, "test_a_silent_router_counts_as_broken"),
    ),
    _handling(
        "router that answers no health check",
        _WATCH,
        ("if await self._answers(ANSWER_S):", "if True:"),
        (_T_WATCH, "test_a_stream_of_a_silent_router_goes_on_elsewhere"),
    ),
    _handling(
        "plain stream of a router that ends",
        f"{_ROUTER}/running_requests.py",
        ("if running.stream is None]", "if False]"),
        (_T_DRAIN, "test_a_plain_stream_that_outlasts_its_router_ends_with_a_retryable_error"),
    ),
    _handling(
        "broken connection of a client",
        _RESUMPTION,
        ("return await self._next(router, failed.error, None)", "raise failed.error"),
        (_T_RESUMPTION, "test_every_event_comes_once_wherever_a_router_ends"),
    ),
    _handling(
        "GCS is started again",
        "cluster/deploy/local_ray/gcs_server.py",
        ("        if self.alive:\n            return\n", "        return\n"),
        ("tests/cluster/deploy/test_gcs_server.py", "test_it_is_started_anew_with_its_own_command"),
    ),
    _handling(
        "bound on deaths of the GCS",
        "cluster/deploy/local_ray/gcs_server.py",
        ("if len(self._deaths) == MOST_DEATHS and", "if False and"),
        (
            "tests/cluster/deploy/test_gcs_server.py",
            "test_one_that_dies_again_and_again_is_given_up",
        ),
    ),
    _handling(
        "raylet that died",
        "cluster/deploy/local_ray/raylet.py",
        ("if ended(self._pid):", "if False:"),
        ("tests/cluster/deploy/test_raylet.py", "test_a_raylet_that_died_is_no_cluster"),
    ),
    _handling(
        "end beside a controller that does not answer",
        "cluster/deploy/timed_call.py",
        ("ends_s = time.monotonic() + timeout_s", "ends_s = time.monotonic() + 1e6"),
        (
            "tests/cluster/deploy/test_ray_cluster.py",
            "test_a_controller_that_never_answers_holds_up_no_end",
        ),
    ),
)
