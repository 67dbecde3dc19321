"""Run the cases of pyverbs on the device that --dev names, and print a line for each: what it is, and its result.

The modules of rdma-core's tests lie beside it.
"""
import importlib.machinery
import os
import traceback
import unittest

here = os.path.dirname(os.path.abspath(__file__))
tests = importlib.machinery.SourceFileLoader('tests', os.path.join(here, '__init__.py')).load_module()

from args_parser import parser  # of rdma-core's tests


class Table(unittest.TestResult):
    def row(self, case, result):
        print(case.id().removeprefix('tests.'), '|', result, flush=True)

    def addSuccess(self, case):
        self.row(case, 'ok')

    def addSkip(self, case, reason):
        self.row(case, 'skipped: ' + reason)

    def addFailure(self, case, err):
        self.row(case, 'failed')
        traceback.print_exception(*err)

    addError = addFailure


parser.parse_args()
unittest.defaultTestLoader.loadTestsFromModule(tests).run(Table())
