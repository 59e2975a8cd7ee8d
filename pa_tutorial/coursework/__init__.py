"""Make assignments from the notebooks, and grade submissions.

    python -m pa_tutorial.coursework make 05_online_softmax --out course
    python -m pa_tutorial.coursework grade 05_online_softmax submitted/*

The page for lecturers is COURSE.md.
"""
