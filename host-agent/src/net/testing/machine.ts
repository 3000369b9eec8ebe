/** A machine for tests of rules: one address in a public network, and one in a private network. */
import type { Machine } from '../machine.ts'

export const MACHINE: Machine = {
  addresses: ['192.168.1.5', '198.51.100.130'],
  subnets: ['198.51.100.128/25'],
  api: { port: 8080, beyondLoopback: false },
  dnsPort: 20_000,
  s3Port: 20_003,
  dnsPerSecond: 100,
}
