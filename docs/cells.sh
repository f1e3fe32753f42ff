# Read by each %%bash cell of the site before it runs.
unset FORCE_COLOR CLICOLOR CLICOLOR_FORCE PY_COLORS
export TERM=dumb NO_COLOR=1 COLUMNS=88
