"""A reverse proxy before a web server that knows no users: Dagster's and MLflow's.

Owns what a browser may be made to send to them by a page of somebody else: nothing that changes state. It looks at
host, origin, method and content type of every request and websocket, and on one machine it asks for a cookie that a
one-time link gives. Who a person is, an identity provider says (oauth2-proxy in k8s/manifests); what that person may do
there, the server behind.
"""
