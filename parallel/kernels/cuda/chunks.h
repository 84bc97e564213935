// A row of elements as chunks of N elements: a chunk is one access of at most 16 bytes.
//
// kAligned: rows begin at multiples of a chunk's bytes and have a multiple of N elements. Otherwise
// a chunk begins at an aligned address of the row that is written, so the first and the last chunk
// of a row may be incomplete; what is read lies across two aligned accesses and is shifted into
// place. Such accesses touch bytes beside the row, but no aligned block of 16 bytes without a byte
// of it, so they stay on the row's pages.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "parallel/kernels/cuda/indexing.h"

namespace meshrun::cuda {

template <int kWords>
struct alignas(4 * kWords) Words {
  uint32_t word[kWords];
};

// The type that moves a vector.
template <typename T, int N>
using Access =
    std::conditional_t<sizeof(T) * N % 4 == 0, Words<(sizeof(T) * N + 3) / 4>, Vector<T, N>>;

// One store instruction. nvcc splits an assignment into one store per word.
template <int kWords>
MESHRUN_HOST_DEVICE void store(Words<kWords>* to, const Words<kWords>& value) {
#if defined(__CUDA_ARCH__)
  const auto address = __cvta_generic_to_global(to);
  const uint32_t* const word = value.word;
  if constexpr (kWords == 4) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(word[0]),
                 "r"(word[1]), "r"(word[2]), "r"(word[3])
                 : "memory");
    return;
  } else if constexpr (kWords == 2) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(word[0]), "r"(word[1])
                 : "memory");
    return;
  }
#endif
  *to = value;
}
template <typename T, int N>
MESHRUN_HOST_DEVICE void store(Vector<T, N>* to, const Vector<T, N>& value) {
  *to = value;
}

// The address of an access, checked on the host: a GPU faults where x86 does not.
template <typename To, typename T>
MESHRUN_HOST_DEVICE To* access_at(T* address) {
#if !defined(__CUDA_ARCH__)
  if (reinterpret_cast<uintptr_t>(address) % alignof(To) != 0) std::abort();
#endif
  return reinterpret_cast<To*>(address);
}

// At most so many chunks has a row of `elements` elements.
template <int N, bool kAligned>
int64_t chunks_of(int64_t elements) {
  return kAligned ? elements / N : (elements + 2 * (N - 1)) / N;
}

template <int N>
struct Chunk {
  int64_t begin;  // its first element's place in the row, negative where the row begins later
  int first = 0;  // elements [first, last) of the chunk belong to the row
  int last = N;
};

// How many elements a row begins behind a multiple of N.
template <int N, typename T>
MESHRUN_HOST_DEVICE int misalignment(const T* row) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(T) % N);
}

template <int N, bool kAligned, typename T>
MESHRUN_HOST_DEVICE Chunk<N> chunk_at(const T* written_row, int64_t elements, int64_t chunk) {
  if constexpr (kAligned) {
    return {chunk * N};
  } else {
    const int64_t begin = chunk * N - misalignment<N>(written_row);
    const int64_t left = elements - begin;
    return {begin, begin < 0 ? static_cast<int>(-begin) : 0, left < N ? static_cast<int>(left) : N};
  }
}

// Element e of a vector that is moved in words: as bits, where a word has several.
template <typename T, int kWords>
MESHRUN_HOST_DEVICE auto element_of(const Words<kWords>& words, int e) {
  if constexpr (sizeof(T) < 4) {
    using Bits = std::conditional_t<sizeof(T) == 1, uint8_t, uint16_t>;
    const auto bit = static_cast<unsigned>(e) * sizeof(T) * 8;
    return static_cast<Bits>(words.word[bit / 32] >> bit % 32);
  } else {
    return __builtin_bit_cast(Vector<T, kWords * 4 / static_cast<int>(sizeof(T))>, words)
        .element[e];
  }
}

template <int N, bool kAligned, typename T>
MESHRUN_HOST_DEVICE void write_chunk(T* row, const Chunk<N>& chunk, const Access<T, N>& value) {
  if (kAligned || (chunk.first == 0 && chunk.last == N)) {
    store(access_at<Access<T, N>>(row + chunk.begin), value);
    return;
  }
  if constexpr (!kAligned) {
    using Element = decltype(element_of<T>(value, 0));
    MESHRUN_UNROLL
    for (int e = 0; e < N; ++e) {
      if (e < chunk.first || e >= chunk.last) continue;
      reinterpret_cast<Element*>(row + chunk.begin)[e] = element_of<T>(value, e);
    }
  }
}

// Bytes [bytes, bytes + 4 kWords) of low and high, one after the other; bytes < 4 kWords.
template <int kWords>
MESHRUN_HOST_DEVICE Words<kWords> cut(const Words<kWords>& low, const Words<kWords>& high,
                                      unsigned bytes) {
  uint32_t words[2 * kWords];
  MESHRUN_UNROLL
  for (int i = 0; i < kWords; ++i) {
    words[i] = low.word[i];
    words[kWords + i] = high.word[i];
  }
  MESHRUN_UNROLL
  for (int step = kWords / 2; step > 0; step /= 2) {
    MESHRUN_UNROLL
    for (int i = 0; i + step < 2 * kWords; ++i) {
      words[i] = (bytes / 4 & static_cast<unsigned>(step)) != 0 ? words[i + step] : words[i];
    }
  }
  const unsigned bits = bytes % 4 * 8;
  Words<kWords> result;
  MESHRUN_UNROLL
  for (int i = 0; i < kWords; ++i) {
#if defined(__CUDA_ARCH__)
    result.word[i] = __funnelshift_r(words[i], words[i + 1], bits);
#else
    const uint64_t both = uint64_t{words[i + 1]} << 32 | words[i];
    result.word[i] = static_cast<uint32_t>(both >> bits);
#endif
  }
  return result;
}

// Elements [begin, begin + N). Those outside the row are unspecified; at least one is the row's.
template <int N, bool kAligned, typename T>
MESHRUN_HOST_DEVICE Access<T, N> read_chunk(const T* row, int64_t elements, int64_t begin) {
  if constexpr (kAligned) {
    return *access_at<const Access<T, N>>(row + begin);
  } else {
    using Part = Access<T, N>;
    const auto first = reinterpret_cast<uintptr_t>(row);
    const auto last = reinterpret_cast<uintptr_t>(row + elements);
    const uintptr_t wanted = first + static_cast<uintptr_t>(begin) * sizeof(T);
    const uintptr_t low = wanted / sizeof(Part) * sizeof(Part);
    const uintptr_t high = low + sizeof(Part);
    Part parts[2] = {};
    if (high > first) parts[0] = *reinterpret_cast<const Part*>(low);
    if (high < last && low != wanted) parts[1] = *reinterpret_cast<const Part*>(high);
    return cut(parts[0], parts[1], static_cast<unsigned>(wanted - low));
  }
}

}  // namespace meshrun::cuda
