"""The driver's side of the kubelet's gRPC protocol: registration, prepare and unprepare.

Everything that speaks gRPC lives here and nowhere else; what a claim means is behind `service.ClaimService`.
"""
