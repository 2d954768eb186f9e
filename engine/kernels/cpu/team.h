// Threads that go through the phases of a step together: work shared out, then a barrier.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// How long a thread that waits keeps its core before it offers it to others.
constexpr int kSpins = 4000;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

class Team {
 public:
  // Once `*halted` is set nothing more is begun, and what was not done is left as it is.
  Team(int threads, int phases, const int32_t* halted = nullptr)
      : threads_(threads), halted_(halted), taken_(new Taken[static_cast<size_t>(phases) * threads]()) {}

  int threads() const { return threads_; }

  // Every thread says first how many there are: OpenMP may give fewer than it was asked for.
  void enter(int here) { present_.store(here, std::memory_order_relaxed); }

  // Calls work(i) for each i below `count`, shared out: every thread takes those of its own range in
  // order, then what others have left. Each phase is gone through once.
  template <typename Work>
  void share(int phase, int thread, int64_t count, Work work) {
    for (int k = 0; k < threads_; ++k) {
      const int whose = thread + k < threads_ ? thread + k : thread + k - threads_;
      const int64_t begin = first(whose, count), end = first(whose + 1, count);
      auto& taken = taken_[static_cast<size_t>(phase) * threads_ + whose].count;
      while (!halted()) {
        const int64_t i = begin + taken.fetch_add(1, std::memory_order_relaxed);
        if (i >= end) break;
        work(i);
      }
    }
  }

  // The first of a thread's own range.
  int64_t first(int thread, int64_t count) const { return count * thread / threads_; }

  // Nobody goes on before all are here, and what each wrote is seen by all.
  void wait() {
    const int present = present_.load(std::memory_order_relaxed);
    if (present == 1) return;
    const int round = round_.load(std::memory_order_relaxed);
    if (here_.fetch_add(1, std::memory_order_acq_rel) + 1 == present) {
      here_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins < kSpins)
        pause();
      else
        std::this_thread::yield();
    }
  }

 private:
  struct alignas(64) Taken {
    std::atomic<int64_t> count{0};
  };

  bool halted() const { return halted_ && __atomic_load_n(halted_, __ATOMIC_RELAXED); }

  const int threads_;
  const int32_t* const halted_;
  std::unique_ptr<Taken[]> taken_;
  std::atomic<int> present_{1};
  alignas(64) std::atomic<int> here_{0};
  alignas(64) std::atomic<int> round_{0};
};

}  // namespace
