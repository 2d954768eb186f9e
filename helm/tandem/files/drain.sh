# The preStop hook of a worker: Serve starts replacements of this node's replicas elsewhere, then
# ends them, each of which leaves the directory and lets its requests end; wait until their
# processes are gone. $1 bounds it in seconds; $2 is where the pod's processes are listed.
seconds="${1:?seconds}" processes="${2:-/proc}"
timeout 30 ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message "the pod ends" \
  --deadline-remaining-seconds "$seconds" || echo "not drained by Ray; waiting all the same"
until [ "$SECONDS" -ge "$seconds" ]; do
  # -q: a match counts though a process ended while it was looked at.
  grep -qsa '^ray::ServeReplica:tandem' "$processes"/[0-9]*/cmdline || exit 0
  sleep 0.5
done
echo "requests still run after $seconds s"
