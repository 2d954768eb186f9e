// Threads that go through the phases of a step together: work shared out, then a barrier.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#endif

namespace {

// How long a thread that waits keeps its core before it offers it to others.
constexpr int kSpins = 4000;
// How long one sleeps that others' steps want the core of, until it looks again unasked.
constexpr std::chrono::microseconds kDoze{1000};

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Other engines' steps on the same `cores`, as engine/cores.py writes them: when each one's last step
// began and ended. What ended by `since` is over.
struct Others {
  std::vector<const double*> steps;
  double since = 0;
  int cores = 1;

  // Cores that they leave, at least one.
  int left() const { return std::max(1, cores / (1 + busy())); }

  int busy() const {
    int found = 0;
    for (const double* step : steps) found += busy(step, ended(step));
    return found;
  }

  // Sleeps until one that is busy rests, or for `kDoze`.
  void wait() const {
#if defined(__linux__)
    for (const double* step : steps) {
      const double end = ended(step);
      if (!busy(step, end)) continue;
      uint32_t known;
      std::memcpy(&known, &end, sizeof known);
      const timespec most{0, std::chrono::nanoseconds(kDoze).count()};
      syscall(SYS_futex, step + 1, FUTEX_WAIT, known, &most, nullptr, 0);
      return;
    }
#endif
    std::this_thread::sleep_for(kDoze);
  }

 private:
  bool busy(const double* step, double end) const {
    double began;
    __atomic_load(step, &began, __ATOMIC_RELAXED);
    return began > end || end > since;
  }

  static double ended(const double* step) {
    double end;
    __atomic_load(step + 1, &end, __ATOMIC_RELAXED);
    return end;
  }
};

// Whoever waits for the engine that writes this step looks again.
inline void wake([[maybe_unused]] const double* step) {
#if defined(__linux__)
  syscall(SYS_futex, step + 1, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
#endif
}

// Who does the work. Once `*halted` is set nothing more is begun, and what was not done is left as it
// is. As `others` begin, threads leave them their share, but for the first one. Those of a `loose` crew
// are as many as there are cores, and each comes and goes within a phase; the first one waits for the
// work of each phase then, and for no other thread. Those of another leave where they are asked to
// `stay`, and do not come back.
struct Crew {
  int threads;
  const int32_t* halted = nullptr;
  std::optional<Others> others = {};
  bool loose = false;
};

class Team {
 public:
  Team(const Crew& crew, int phases)
      : threads_(crew.threads),
        halted_(crew.halted),
        others_(crew.others),
        loose_(crew.loose),
        taken_(new Counter[static_cast<size_t>(phases) * threads_]()),
        done_(loose_ ? new Counter[phases]() : nullptr),
        at_work_(loose_ ? new Flag[threads_]() : nullptr) {}

  int threads() const { return threads_; }

  // Every thread says first how many there are: OpenMP may give fewer than it was asked for.
  void enter(int here) { present_.store(here, std::memory_order_relaxed); }

  // Calls work(i) for each i below `count`, shared out: every thread takes those of its own range in
  // order, then what others have left. Each phase is gone through once.
  template <typename Work>
  void share(int phase, int thread, int64_t count, Work work) {
    if (loose_ && (over(phase, count) || !come(thread))) return;
    int64_t did = 0;
    for (int k = 0; k < threads_; ++k) {
      const int whose = thread + k < threads_ ? thread + k : thread + k - threads_;
      const int64_t begin = first(whose, count), end = first(whose + 1, count);
      auto& taken = taken_[static_cast<size_t>(phase) * threads_ + whose].count;
      while (!halted()) {
        if (away(thread)) {
          note(phase, std::exchange(did, 0));
          if (!doze(phase, thread, count)) return;
        }
        const int64_t i = begin + taken.fetch_add(1, std::memory_order_relaxed);
        if (i >= end) break;
        work(i);
        ++did;
      }
    }
    if (!loose_) return;
    note(phase, did);
    leave(thread);
    spin([&] { return over(phase, count) || (!thread && halted()); });
  }

  // Of the first thread of a loose crew, at the end: from here on no other one begins anything,
  // or looks at what is the caller's.
  void close() {
    closed_.store(true);
    for (int thread = 1; thread < threads_; ++thread)
      spin([&] { return !at_work_[thread].on.load(); });
  }

  // The first of a thread's own range.
  int64_t first(int thread, int64_t count) const { return count * thread / threads_; }

  // Nobody goes on before all are here, and what each wrote is seen by all.
  void wait() { meet([] {}); }

  // The same; false: others want this thread's core, and those that stay do its part from here on.
  bool stay(int thread) {
    meet([&] {
      if (!others_) return;
      const int present = present_.load(std::memory_order_relaxed);
      present_.store(std::min(present, others_->left()), std::memory_order_relaxed);
    });
    return loose_ || thread < present_.load(std::memory_order_relaxed);
  }

 private:
  // Who comes last calls last() before the others go on.
  template <typename Last>
  void meet(Last last) {
    if (loose_) return;  // `share` has waited
    const int present = present_.load(std::memory_order_relaxed);
    if (present == 1) return;
    const int round = round_.load(std::memory_order_relaxed);
    if (here_.fetch_add(1, std::memory_order_acq_rel) + 1 == present) {
      here_.store(0, std::memory_order_relaxed);
      last();
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    spin([&] { return round_.load(std::memory_order_acquire) != round; });
  }

  struct alignas(64) Counter {
    std::atomic<int64_t> count{0};
  };
  struct alignas(64) Flag {
    std::atomic<bool> on{false};
  };

  bool halted() const { return halted_ && __atomic_load_n(halted_, __ATOMIC_RELAXED); }

  template <typename Over>
  static void spin(Over over) {
    for (int spins = 0; !over(); ++spins) {
      if (spins < kSpins)
        pause();
      else
        std::this_thread::yield();
    }
  }

  // Whether a phase is gone through, for those that need not look at what is the caller's.
  bool over(int phase, int64_t count) const {
    return done_[phase].count.load(std::memory_order_acquire) == count || closed_.load();
  }

  // A thread is at work from where it came until it leaves; false: too late.
  bool come(int thread) {
    at_work_[thread].on.store(true);
    if (!closed_.load()) return true;
    leave(thread);
    return false;
  }

  void leave(int thread) { at_work_[thread].on.store(false); }

  // Sleeps while others' steps want this thread's core, and is not at work then; false: the phase was
  // over first.
  bool doze(int phase, int thread, int64_t count) {
    do {
      leave(thread);
      others_->wait();
      if (over(phase, count) || !come(thread)) return false;
    } while (away(thread));
    return true;
  }

  // Whether others' steps want this thread's core.
  bool away(int thread) const {
    return loose_ && thread && thread >= others_->left();
  }

  void note(int phase, int64_t did) {
    if (did) done_[phase].count.fetch_add(did, std::memory_order_acq_rel);
  }

  const int threads_;
  const int32_t* const halted_;
  const std::optional<Others> others_;
  const bool loose_;
  std::unique_ptr<Counter[]> taken_, done_;
  std::unique_ptr<Flag[]> at_work_;
  std::atomic<bool> closed_{false};
  std::atomic<int> present_{1};
  alignas(64) std::atomic<int> here_{0};
  alignas(64) std::atomic<int> round_{0};
};

}  // namespace
