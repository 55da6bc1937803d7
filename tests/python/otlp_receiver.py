"""A collector that writes everything it receives, as one JSON object per line.

    python otlp_receiver.py

The first line has the ports of gRPC and of HTTP. It accepts plain and gzipped protobuf.
"""

import gzip
import json
import os
import sys
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

LOCK = threading.Lock()


def write(line):
    with LOCK:
        print(json.dumps(line), flush=True)


def plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None


def attributes(pairs):
    return {pair.key: plain(pair.value) for pair in pairs}


def take_traces(request, how):
    for resource in request.resource_spans:
        service = attributes(resource.resource.attributes)
        for scope in resource.scope_spans:
            for span in scope.spans:
                write({
                    "signal": "span", "how": how, "resource": service, "name": span.name,
                    "trace": span.trace_id.hex(), "id": span.span_id.hex(),
                    "parent": span.parent_span_id.hex(), "kind": span.kind,
                    "start": span.start_time_unix_nano, "end": span.end_time_unix_nano,
                    "attributes": attributes(span.attributes), "status": span.status.code,
                    "events": [{"name": e.name, "at": e.time_unix_nano, "attributes": attributes(e.attributes)}
                               for e in span.events],
                    "links": [{"trace": l.trace_id.hex(), "id": l.span_id.hex()} for l in span.links],
                })


def take_metrics(request, how):
    for resource in request.resource_metrics:
        service = attributes(resource.resource.attributes)
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                points = []
                for point in getattr(metric, kind).data_points:
                    number = point.count if kind == "histogram" else getattr(point, point.WhichOneof("value"))
                    points.append({"attributes": attributes(point.attributes), "value": number})
                write({"signal": "metric", "how": how, "resource": service, "name": metric.name,
                       "unit": metric.unit, "kind": kind, "points": points})


class Http(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        how = "http"
        if self.headers.get("content-encoding") == "gzip":
            body, how = gzip.decompress(body), "http+gzip"
        if self.path == "/v1/traces":
            take_traces(trace_service_pb2.ExportTraceServiceRequest.FromString(body), how)
        elif self.path == "/v1/metrics":
            take_metrics(metrics_service_pb2.ExportMetricsServiceRequest.FromString(body), how)
        else:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Traces(trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request, context):
        take_traces(request, "grpc")
        return trace_service_pb2.ExportTraceServiceResponse()


class Metrics(metrics_service_pb2_grpc.MetricsServiceServicer):
    def Export(self, request, context):
        take_metrics(request, "grpc")
        return metrics_service_pb2.ExportMetricsServiceResponse()


http = ThreadingHTTPServer(("127.0.0.1", 0), Http)
server = grpc.server(futures.ThreadPoolExecutor(4))
trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Traces(), server)
metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server(Metrics(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
write({"grpc": port, "http": http.server_port})
threading.Thread(target=http.serve_forever, daemon=True).start()
sys.stdin.read()
server.stop(None).wait()
# Threads that still listen would keep the process alive, so it exits without waiting for them.
sys.stdout.flush()
os._exit(0)
