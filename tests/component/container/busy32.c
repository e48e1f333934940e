// SPDX-License-Identifier: Apache-2.0
// A 32-bit program without a C library: maps the file that is open as descriptor 3 and counts in
// its first word for ever.

static long call6(long number, long a, long b, long c, long d, long e) {
  long result;
  __asm__ volatile("pushl %%ebp\n\txorl %%ebp, %%ebp\n\tint $0x80\n\tpopl %%ebp"
                   : "=a"(result)
                   : "a"(number), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
                   : "memory");
  return result;
}

void _start(void) {
  // mmap2(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, 3, 0)
  volatile unsigned* counter = (volatile unsigned*)call6(192, 0, 4096, 3, 1, 3);
  for (;;) ++*counter;
}
