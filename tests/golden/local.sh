# No scheduler here: 2 process(es), in a session of their own
export COURSE_RUN_FOLDER=RUN_FOLDER
PYTHON -u -m submitit.core._submit RUN_FOLDER/logs
