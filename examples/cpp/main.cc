#include <relpos/relpos.h>

#include <cstdio>

int main() {
  std::printf("relpos %s, %zu schemes\n", RELPOS_VERSION, relpos::schemes().size());
  return relpos::schemes().empty();
}
