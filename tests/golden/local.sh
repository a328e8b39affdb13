# No scheduler here: 2 processes, in one session
export COURSE_RUN_FOLDER=RUN_FOLDER
PYTHON -uP -m course.jobs.warm.task RUN_FOLDER/logs
