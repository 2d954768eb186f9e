// Threads that go through the phases of a step together: work shared out, then a barrier.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "others.h"

namespace {

// How long a waiting thread keeps its core before it yields it.
constexpr int kSpins = 4000;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// The threads of a step. Once `*halted` is set they begin no more work, and undone work is left as it is.
// With `others` there is a thread for each core. Within a phase each thread works only while the other
// engines leave it a core; the first thread always works. It waits for the work of each phase, and not
// for the other threads.
struct Crew {
  int threads;
  const int32_t* halted = nullptr;
  std::optional<Others> others = {};
};

class Team {
 public:
  Team(const Crew& crew, int phases)
      : threads_(crew.threads),
        halted_(crew.halted),
        others_(crew.others),
        taken_(new Counter[static_cast<size_t>(phases) * threads_]()),
        done_(others_ ? new Counter[phases]() : nullptr),
        at_work_(others_ ? new Flag[threads_]() : nullptr) {}

  int threads() const { return threads_; }

  // Every thread first sets the number of threads: OpenMP may start fewer than requested.
  void enter(int here) { present_.store(here, std::memory_order_relaxed); }

  // Calls work(i) for each i below `count`. Every thread first takes its own range in order, and then
  // the remaining items of other threads. Each phase is run once.
  template <typename Work>
  void share(int phase, int thread, int64_t count, Work work) {
    if (others_ && (over(phase, count) || !come(thread))) return;
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
    if (!others_) return;
    note(phase, did);
    leave(thread);
    spin([&] { return over(phase, count) || (!thread && halted()); });
  }

  // Called by the first thread of a crew with `others`, at the end: from here on no other thread begins
  // any work, or reads the caller's data.
  void close() {
    closed_.store(true);
    for (int thread = 1; thread < threads_; ++thread)
      spin([&] { return !at_work_[thread].on.load(); });
  }

  // The first index of a thread's own range.
  int64_t first(int thread, int64_t count) const { return count * thread / threads_; }

  // A barrier: no thread goes on before all are here, and all see the writes of each.
  void wait() {
    if (others_) return;  // `share` has waited
    const int present = present_.load(std::memory_order_relaxed);
    if (present == 1) return;
    const int round = round_.load(std::memory_order_relaxed);
    if (here_.fetch_add(1, std::memory_order_acq_rel) + 1 == present) {
      here_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    spin([&] { return round_.load(std::memory_order_acquire) != round; });
  }

 private:
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

  // Whether a phase is over, for threads that must not read the caller's data.
  bool over(int phase, int64_t count) const {
    return done_[phase].count.load(std::memory_order_acquire) == count || closed_.load();
  }

  // Counts a thread as working until it leaves; false: too late.
  bool come(int thread) {
    at_work_[thread].on.store(true);
    if (!closed_.load()) return true;
    leave(thread);
    return false;
  }

  void leave(int thread) { at_work_[thread].on.store(false); }

  // Sleeps while other engines' steps need this thread's core, without being counted as working; false:
  // the phase was over first.
  bool doze(int phase, int thread, int64_t count) {
    do {
      leave(thread);
      others_->wait();
      if (over(phase, count) || !come(thread)) return false;
    } while (away(thread));
    return true;
  }

  // Whether other engines' steps need this thread's core.
  bool away(int thread) const {
    return others_ && thread && thread >= threads_ / (1 + others_->busy());
  }

  void note(int phase, int64_t did) {
    if (did) done_[phase].count.fetch_add(did, std::memory_order_acq_rel);
  }

  const int threads_;
  const int32_t* const halted_;
  const std::optional<Others> others_;
  std::unique_ptr<Counter[]> taken_, done_;
  std::unique_ptr<Flag[]> at_work_;
  std::atomic<bool> closed_{false};
  std::atomic<int> present_{1};
  alignas(64) std::atomic<int> here_{0};
  alignas(64) std::atomic<int> round_{0};
};

}  // namespace
