"""Tests of the packages that speak to servers."""
