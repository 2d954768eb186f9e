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

// How long a thread that waits keeps its core before it offers it to others.
constexpr int kSpins = 4000;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// Who does the work. Once `*halted` is set nothing more is begun, and what was not done is left as it
// is. With `others` the threads are as many as there are cores, and within a phase each comes and goes
// as those leave it its share; the first one always stays. It waits for the work of each phase then,
// and for no other thread.
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

  // Every thread says first how many there are: OpenMP may give fewer than it was asked for.
  void enter(int here) { present_.store(here, std::memory_order_relaxed); }

  // Calls work(i) for each i below `count`, shared out: every thread takes those of its own range in
  // order, then what others have left. Each phase is gone through once.
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

  // Of the first thread of a crew with `others`, at the end: from here on no other one begins anything,
  // or looks at what is the caller's.
  void close() {
    closed_.store(true);
    for (int thread = 1; thread < threads_; ++thread)
      spin([&] { return !at_work_[thread].on.load(); });
  }

  // The first of a thread's own range.
  int64_t first(int thread, int64_t count) const { return count * thread / threads_; }

  // Nobody goes on before all are here, and what each wrote is seen by all.
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
