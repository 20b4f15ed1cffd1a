/* What a GPU counts and keeps of its health. */
#include "core.h"

/* The GPU itself counts, so that a reset lets it start anew; power is taken as constant. */
u64 sim_energy(const struct sim_gpu *g) {
    u64 now = (u64)sim_now_ms();
    return g->energy_base + (now > g->energy_since ? (now - g->energy_since) * g->power_mw / 1000 : 0);
}

void sim_energy_restart(struct sim_gpu *g) {
    g->energy_base = 0;
    g->energy_since = (u64)sim_now_ms();
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t d, u64 *energy) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(energy);
    *energy = sim_energy(c.gpu);
    LEAVE(NVML_SUCCESS);
}
