/** Attempts of a program in a guest (attacker.pl) against its network, and their outcomes. */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { requestOk } from './sandboxes.ts'
import type { VmInstance } from './vm-instance.ts'

const PROGRAM = readFileSync(path.join(import.meta.dirname, 'attacker.pl'), 'utf8')
const RESOLVER = '169.254.1.1'
const DNS_PORT = 53
const RCODES = ['NOERROR', 'FORMERR', 'SERVFAIL', 'NXDOMAIN', 'NOTIMP', 'REFUSED']
const A_RECORD_BYTES = 16

/** One argument of attacker.pl, and how to read the bytes of its outcome. */
export type Attempt = { line: string; read: (outcome: Buffer) => string }

/** Nothing was received within the time limit of attacker.pl. */
export const NO_RESPONSE = 'no response'

/** Makes all attempts at the same time and returns their outcomes. */
export async function attack(warren: VmInstance, id: string, attempts: readonly Attempt[]): Promise<string[]> {
  const args = ['-e', PROGRAM, ...attempts.map(({ line }) => line)]
  const data = await requestOk(warren, 'POST', `/sandboxes/${id}/exec`, { cmd: 'perl', args })
  const { stdout, stderr, exit_code } = data.result as { stdout: string; stderr: string; exit_code: number }
  assert.equal(exit_code, 0, stderr)
  const outcomes = new Map(stdout.split('\n').map((line) => line.split(' ') as [string, string]))
  return attempts.map(({ read }, number) => {
    const bytes = Buffer.from(outcomes.get(String(number)) ?? '', 'hex')
    return bytes.toString() === NO_RESPONSE ? NO_RESPONSE : read(bytes)
  })
}

const asText = (bytes: Buffer): string => bytes.toString('latin1')
const hex = (part: Buffer | string): string => Buffer.from(part as string, 'latin1').toString('hex')

/** Opens a connection and sends each part as a separate segment; the outcome is everything received. */
export const tcpExchange = (to: string, port: number, ...parts: (Buffer | string)[]): Attempt => ({
  line: ['tcp', to, port, ...parts.map(hex)].join(' '),
  read: asText,
})

export const datagram = (to: string, port: number, text: string): Attempt => ({
  line: `send ${to} ${port} ${hex(text)}`,
  read: asText,
})

/** The outcome is the response code and the addresses. */
export function dnsQuery(name: string, type = 1, { server = RESOLVER, overTcp = false } = {}): Attempt {
  const bytes = renderDnsQuery(name, type)
  if (!overTcp)
    return {
      line: `udp ${server} ${DNS_PORT} ${hex(bytes)}`,
      read: (received) => readDnsResponse(received, bytes.length),
    }
  const length = Buffer.from([bytes.length >> 8, bytes.length & 255])
  return {
    line: `tcp ${server} ${DNS_PORT} ${hex(Buffer.concat([length, bytes]))}`,
    read: (received) => readDnsResponse(received.subarray(2), bytes.length),
  }
}

/** Sends Ethernet frames; the outcome is the frames received, up to the first that contains `until`. */
export const frames = (sent: readonly Buffer[], until: Buffer): Attempt => ({
  line: ['frames', hex(until), ...sent.map(hex)].join(' '),
  read: asText,
})

function renderDnsQuery(name: string, type: number): Buffer {
  const labels = name.split('.').map((label) => Buffer.from([label.length, ...Buffer.from(label, 'latin1')]))
  const header = Buffer.from([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
  return Buffer.concat([header, ...labels, Buffer.from([0, type >> 8, type & 255, 0, 1])])
}

/** Warren's resolver repeats the query, and every record refers to its name by offset. */
export function readDnsResponse(response: Buffer, queryBytes: number): string {
  if (response.length < queryBytes) return asText(response)
  const addresses = Array.from({ length: response.readUInt16BE(6) }, (_, record) => {
    const end = queryBytes + (record + 1) * A_RECORD_BYTES
    return response.subarray(end - 4, end).join('.')
  })
  return [RCODES[response.readUInt8(3) & 0xf], ...addresses].join(' ')
}
