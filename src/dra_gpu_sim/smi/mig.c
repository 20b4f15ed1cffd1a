/* nvidia-smi mig: list, create and destroy instances. */
#include "smi.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static int no_mig_gpus(void) {
    printf("No MIG-enabled devices found.\n");
    return exit_code(NVML_ERROR_NOT_FOUND);
}

static void list_profile(struct sim_gpu *g, int position, const struct sim_profile *p) {
    char counts[16];
    snprintf(counts, sizeof counts, "%u/%u", g->mig_current ? sim_gi_remaining(g, p) : 0, p->max_instances);
    printf("|  %2d  %-20s %3u   %-7s  %9.2f       %s     %3u    %2u     %2u   |\n", position, p->name, p->id, counts,
           p->memory_mib / 1024.0, p->capabilities & 1 ? "Yes" : "No ", p->sm, p->dec, p->enc);
    printf("|  %-2s  %-20s %3s   %-7s  %9s       %s     %3u    %2u     %2u   |\n", "", "", "", "", "", "   ", p->copy,
           p->jpeg, p->ofa);
    printf("+--------------------------------------------------------------------------------+\n");
}

static int list_profiles(const struct selection *gpus) {
    struct ctx c;
    int shown = 0;
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi mig -lgip", gpus->gpus[i]);
        if (result == NVML_SUCCESS && c.gpu->mig_current) {
            if (!shown++)
                printf("+--------------------------------------------------------------------------------+\n"
                       "| GPU instance profiles:                                                         |\n"
                       "| GPU   Name                  ID   Instances   Memory     P2P    SM    DEC   ENC |\n"
                       "|                                  Free/Total   GiB              CE    JPEG  OFA |\n"
                       "|================================================================================|\n");
            for (u32 k = 0; k < c.gpu->profile_count; k++) list_profile(c.gpu, sim_position(c.index), &c.gpu->profiles[k]);
        }
        sim_leave(&c, result);
    }
    return shown ? 0 : no_mig_gpus();
}

static int list_placements(const struct selection *gpus) {
    struct ctx c;
    int shown = 0;
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi mig -lgipp", gpus->gpus[i]);
        for (u32 k = 0; result == NVML_SUCCESS && c.gpu->mig_current && k < c.gpu->profile_count; k++) {
            const struct sim_profile *p = &c.gpu->profiles[k];
            printf("GPU %2d Profile ID %2u %s: {", sim_position(c.index), p->id, p->placement_count == 1 ? "Placement " : "Placements");
            for (u32 n = 0; n < p->placement_count; n++) printf("%s%u", n ? "," : "", p->starts[n]);
            printf("}:%u\n", p->memory_units);
            shown++;
        }
        sim_leave(&c, result);
    }
    return shown ? 0 : no_mig_gpus();
}

static int list_instances(const struct selection *gpus) {
    struct ctx c;
    int shown = 0, enabled = 0;
    for (int i = 0; i < gpus->count; i++) {
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi mig -lgi", gpus->gpus[i]);
        enabled += result == NVML_SUCCESS && c.gpu->mig_current;
        for (int k = 0; result == NVML_SUCCESS && k < SIM_MAX_GI; k++) {
            const struct sim_gi *gi = &c.gpu->gi[k];
            char place[16];
            if (!gi->used) continue;
            if (!shown++)
                printf("+---------------------------------------------------------+\n"
                       "| GPU instances:                                          |\n"
                       "| GPU   Name               Profile  Instance   Placement  |\n"
                       "|                            ID       ID       Start:Size |\n"
                       "|=========================================================|\n");
            snprintf(place, sizeof place, "%u:%u", gi->start, gi->size);
            printf("|  %2d  %-20s %3u      %3u       %7s     |\n"
                   "+---------------------------------------------------------+\n",
                   sim_position(c.index), c.gpu->profiles[gi->profile].name, c.gpu->profiles[gi->profile].id, gi->id, place);
        }
        sim_leave(&c, result);
    }
    if (!enabled) return no_mig_gpus();
    if (!shown) printf("No GPU instances found: Not Found\n");
    return shown ? 0 : exit_code(NVML_ERROR_NOT_FOUND);
}

/* An id, or a name with or without the word MIG. */
static struct sim_profile *profile_named(struct sim_gpu *g, const char *text) {
    char *end;
    unsigned long id = strtoul(text, &end, 10);
    if (*text && !*end) return sim_profile_by_id(g, (u32)id);
    for (u32 i = 0; i < g->profile_count; i++)
        if (!strcasecmp(text, g->profiles[i].name) || !strcasecmp(text, g->profiles[i].name + 4)) return &g->profiles[i];
    return NULL;
}

static nvmlReturn_t create_compute(struct ctx *c, struct sim_gi *gi) {
    const struct sim_profile *p = &c->gpu->profiles[gi->profile];
    struct sim_ci *ci;
    u32 slices;
    for (u32 profile = 0; profile < 9; profile++) {
        if (sim_ci_profile(p, profile, &slices) != 1 || slices != p->slices) continue;
        nvmlReturn_t result = sim_ci_create(c->s, c->index, gi, profile, NULL, &ci);
        if (result == NVML_SUCCESS)
            printf("Successfully created compute instance ID %2u on GPU %2d GPU instance ID %2u using profile %s (ID %2u)\n",
                   ci->id, sim_position(c->index), gi->id, p->name, profile);
        return result;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

/* Creates in the order given; when one fails, the earlier ones stay. */
static int create_on(int gpu, const char *profiles, int with_compute) {
    char copy[512], *rest = NULL;
    struct ctx c;
    struct sim_gi *gi;
    snprintf(copy, sizeof copy, "%s", profiles);
    for (char *item = strtok_r(copy, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
        struct nvml_placement at = {0, 0};
        char *colon = strchr(item, ':');
        nvmlReturn_t result = on_gpu(&c, "nvidia-smi mig -cgi", gpu);
        if (colon) *colon = 0;
        struct sim_profile *p = profile_named(&c.s->gpus[gpu], item);
        sim_detail(&c, "profile=%s", item);
        if (result == NVML_SUCCESS && !p) result = NVML_ERROR_INVALID_ARGUMENT;
        if (colon && p) at = (struct nvml_placement){(u32)atoi(colon + 1), p->memory_units};
        if (result == NVML_SUCCESS) result = sim_gi_create(c.s, gpu, p->id, colon ? &at : NULL, &gi);
        if (result == NVML_SUCCESS)
            printf("Successfully created GPU instance ID %2u on GPU %2d using profile %s (ID %2u)\n", gi->id,
                   sim_position(gpu), p->name, p->id);
        int made = result == NVML_SUCCESS;
        if (made && with_compute) result = create_compute(&c, gi);
        sim_leave(&c, result);
        if (result == NVML_SUCCESS) continue;
        printf("Unable to create a %s instance on GPU %2d using profile %s: %s\n", made ? "compute" : "GPU",
               sim_position(gpu), item, error_text(result));
        printf("Failed to create %s instances: %s\n", made ? "compute" : "GPU", error_text(result));
        return exit_code(result);
    }
    return 0;
}

struct request {
    const char *create;
    int with_compute, create_compute, destroy_compute, destroy, gi, ci;
};

static int compute_on(int gpu, const struct request *r) {
    struct ctx c;
    int done = 0;
    nvmlReturn_t result = on_gpu(&c, r->create_compute ? "nvidia-smi mig -cci" : "nvidia-smi mig -dci", gpu);
    for (int i = 0; i < SIM_MAX_GI && result == NVML_SUCCESS; i++) {
        struct sim_gi *gi = &c.gpu->gi[i];
        if (!gi->used || (r->gi >= 0 && (int)gi->id != r->gi)) continue;
        if (r->create_compute) {
            result = create_compute(&c, gi);
            done++;
        }
        for (int k = 0; k < SIM_MAX_CI && r->destroy_compute && result == NVML_SUCCESS; k++) {
            if (!gi->ci[k].used || (r->ci >= 0 && (int)gi->ci[k].id != r->ci)) continue;
            result = sim_ci_destroy(c.s, gpu, gi, &gi->ci[k]);
            done++;
            if (result == NVML_SUCCESS)
                printf("Successfully destroyed compute instance ID %2d from GPU %2d GPU instance ID %2u\n", k, sim_position(gpu), gi->id);
            else
                printf("Unable to destroy compute instance ID %2d from GPU %2d GPU instance ID %2u: %s\n", k, sim_position(gpu), gi->id, error_text(result));
        }
    }
    if (result == NVML_SUCCESS && !done) result = NVML_ERROR_NOT_FOUND;
    sim_leave(&c, result);
    if (result != NVML_SUCCESS)
        printf("Failed to %s compute instances: %s\n", r->create_compute ? "create" : "destroy", error_text(result));
    return result == NVML_SUCCESS ? 0 : exit_code(result);
}

static int destroy_on(int gpu, const struct request *r) {
    struct ctx c;
    int done = 0;
    nvmlReturn_t result = on_gpu(&c, "nvidia-smi mig -dgi", gpu);
    for (int i = 0; i < SIM_MAX_GI && result == NVML_SUCCESS; i++) {
        struct sim_gi *gi = &c.gpu->gi[i];
        u32 id = gi->id;
        if (!gi->used || (r->gi >= 0 && (int)id != r->gi)) continue;
        result = sim_gi_destroy(c.s, gpu, gi);
        done++;
        if (result == NVML_SUCCESS) printf("Successfully destroyed GPU instance ID %2u from GPU %2d\n", id, sim_position(gpu));
        else printf("Unable to destroy GPU instance ID %2u from GPU %2d: %s\n", id, sim_position(gpu), error_text(result));
    }
    if (result == NVML_SUCCESS && !done) result = NVML_ERROR_NOT_FOUND;
    sim_leave(&c, result);
    if (result != NVML_SUCCESS) printf("Failed to destroy GPU instances: %s\n", error_text(result));
    return result == NVML_SUCCESS ? 0 : exit_code(result);
}

int smi_mig(int count, char **a) {
    struct request r = {.gi = -1, .ci = -1};
    struct selection gpus;
    const char *ids = NULL;
    int list = 0, code = 0;
    for (int i = 0; i < count; i++) {
        int more = i + 1 < count && a[i + 1][0] != '-';
        if (!strcmp(a[i], "-i") && more) ids = a[++i];
        else if (!strcmp(a[i], "-gi") && more) r.gi = atoi(a[++i]);
        else if (!strcmp(a[i], "-ci") && more) r.ci = atoi(a[++i]);
        else if (!strcmp(a[i], "-cgi") && more) r.create = a[++i];
        else if (!strcmp(a[i], "-C")) r.with_compute = 1;
        else if (!strcmp(a[i], "-cci")) r.create_compute = 1, i += more;
        else if (!strcmp(a[i], "-dci")) r.destroy_compute = 1;
        else if (!strcmp(a[i], "-dgi")) r.destroy = 1;
        else if (!strcmp(a[i], "-lgip")) list = 'p';
        else if (!strcmp(a[i], "-lgipp")) list = 'l';
        else if (!strcmp(a[i], "-lgi")) list = 'i';
        else {
            printf("Option %s is not recognized. Please run 'nvidia-smi -h'.\n", a[i]);
            return exit_code(NVML_ERROR_INVALID_ARGUMENT);
        }
    }
    if ((code = select_gpus(ids, &gpus))) return code;
    if (list == 'p') return list_profiles(&gpus);
    if (list == 'l') return list_placements(&gpus);
    if (list == 'i') return list_instances(&gpus);
    int enabled = 0;
    for (int i = 0; i < gpus.count && !code; i++) {
        if (!sim_state()->gpus[gpus.gpus[i]].mig_current) continue;
        enabled++;
        if (r.create) code = create_on(gpus.gpus[i], r.create, r.with_compute);
        else if (r.create_compute || r.destroy_compute) code = compute_on(gpus.gpus[i], &r);
        else if (r.destroy) code = destroy_on(gpus.gpus[i], &r);
    }
    return enabled ? code : no_mig_gpus();
}
