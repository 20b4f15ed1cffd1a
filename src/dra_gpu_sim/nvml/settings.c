/* Modes of a GPU that can be read and set, and its sensors. */
#include "core.h"

#include <unistd.h>

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t d, u32 *mode) {
    ENTER_HANDLE(d, H_GPU | H_MIG);
    REQUIRE_ARGUMENT(mode);
    REQUIRE(c.kind == H_MIG || !c.gpu->mig_current, NVML_ERROR_NOT_SUPPORTED);
    *mode = c.kind == H_MIG ? NVML_COMPUTEMODE_DEFAULT : c.gpu->compute_mode;
    LEAVE(NVML_SUCCESS);
}

/* With MIG on, the handle must be a MIG device, and there EXCLUSIVE_PROCESS does not exist (MIG User Guide r580). */
EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t d, u32 mode) {
    ENTER_HANDLE(d, H_GPU | H_MIG);
    sim_detail(&c, "mode=%u", mode);
    REQUIRE_ARGUMENT(mode <= NVML_COMPUTEMODE_EXCLUSIVE_PROCESS);
    REQUIRE(geteuid() == 0, NVML_ERROR_NO_PERMISSION);
    REQUIRE(mode != 1, NVML_ERROR_NOT_SUPPORTED); /* EXCLUSIVE_THREAD is gone */
    if (c.kind == H_MIG) LEAVE(mode == NVML_COMPUTEMODE_DEFAULT ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED);
    REQUIRE(!c.gpu->mig_current, NVML_ERROR_NOT_SUPPORTED);
    c.gpu->compute_mode = mode;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t d, u32 *mode) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(mode);
    *mode = c.gpu->persistence;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t d, u32 mode) {
    ENTER_HANDLE(d, H_GPU);
    sim_detail(&c, "mode=%u", mode);
    REQUIRE_ARGUMENT(mode <= 1);
    REQUIRE(geteuid() == 0, NVML_ERROR_NO_PERMISSION);
    c.gpu->persistence = mode;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, u32 *current, u32 *pending) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(current && pending);
    *current = c.gpu->ecc_current;
    *pending = c.gpu->ecc_pending;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, u32 *milliwatts) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(milliwatts);
    *milliwatts = c.gpu->power_mw;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t d, u32 *milliwatts) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(milliwatts);
    *milliwatts = c.gpu->power_limit_mw;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, u32 *milliwatts) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(milliwatts);
    *milliwatts = c.gpu->power_limit_mw;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, u32 sensor, u32 *celsius) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(celsius && sensor == 0);
    *celsius = c.gpu->temperature;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t d, struct nvml_temperature *t) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(t);
    REQUIRE_VERSION(t, struct nvml_temperature, 1);
    REQUIRE_ARGUMENT(t->sensor == 0);
    t->value = (int)c.gpu->temperature;
    LEAVE(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, struct nvml_utilization *u) {
    ENTER_HANDLE(d, H_GPU);
    REQUIRE_ARGUMENT(u);
    REQUIRE(!c.gpu->mig_current, NVML_ERROR_NOT_SUPPORTED);
    u->gpu = c.gpu->utilization_gpu;
    u->memory = c.gpu->utilization_memory;
    LEAVE(NVML_SUCCESS);
}
