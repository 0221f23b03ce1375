// Package signals tests what the library tells OpenTelemetry, with its SDK. It is a module of its own, so that the SDK
// stands in nobody's list of modules.
package signals
