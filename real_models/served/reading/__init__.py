"""Responses of servers, whatever their form, as rows of known tokens."""
