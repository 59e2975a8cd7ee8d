"""Lets `pip install -e .` install [tool.setuptools.data-files], which setuptools leaves out."""

from setuptools import Distribution, setup


class WithData(Distribution):
    has_data = Distribution.has_data_files  # the name that an editable wheel asks for


setup(distclass=WithData)
