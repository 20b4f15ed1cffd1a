/* The sandbox process of every pod: holds the pod's namespaces, reaps orphans, ends on SIGTERM or SIGINT. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int signal_number) {
  (void)signal_number;
  _exit(0);
}

static void reap(int signal_number) {
  (void)signal_number;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction on_end = {.sa_handler = leave};
  struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP | SA_RESTART};
  if (sigaction(SIGTERM, &on_end, NULL) || sigaction(SIGINT, &on_end, NULL) || sigaction(SIGCHLD, &on_child, NULL)) {
    return 1;
  }
  for (;;) {
    pause();
  }
}
