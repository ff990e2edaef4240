"""Which behaviour did the reward select? GRPO-based unlearning as one grid.

snakemake -n all                                   what would run
snakemake --profile profiles/slurm all             the paper's grid, on a cluster
snakemake --profile profiles/demo all              the embedded world, on a laptop
snakemake --cores 1 partial                        tables from what is there
"""

from snakemake.utils import min_version

min_version("9.20")


# The checkout's, also when --directory puts results elsewhere. A file on the command line takes its
# place, in jobs on a cluster too: Snakemake does not hand --replace-workflow-config down to them.
if not workflow.overwrite_configfiles:

    configfile: f"{workflow.basedir}/config/config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/demo.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/warmup.smk"
include: "workflow/rules/grpo.smk"
include: "workflow/rules/generate.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/rwku.smk"
include: "workflow/rules/tables.smk"


rule all:
    """Every table and figure of the grid."""
    default_target: True
    input:
        TABLES,
        FIGURES,
