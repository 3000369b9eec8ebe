/** What a program in a guest can try against its network (attacker.pl), and what came of it. */
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

/** One thing to try, and how the bytes that came of it read. */
export type Attempt = { line: string; read: (outcome: Buffer) => string }

/** Nothing came within the attacker's patience. */
export const NO_RESPONSE = 'no answer'

/** All at the same time. */
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

/** Each part is a segment of its own. */
export const tcpExchange = (to: string, port: number, ...parts: (Buffer | string)[]): Attempt => ({
  line: ['talk', to, port, ...parts.map(hex)].join(' '),
  read: asText,
})

export const datagram = (to: string, port: number, text: string): Attempt => ({
  line: `send ${to} ${port} ${hex(text)}`,
  read: asText,
})

/** The outcome is the code of the answer and its addresses. */
export function dnsQuery(name: string, type = 1, { server = RESOLVER, overTcp = false } = {}): Attempt {
  const bytes = renderQuestion(name, type)
  if (!overTcp)
    return { line: `ask ${server} ${DNS_PORT} ${hex(bytes)}`, read: (got) => readDnsResponse(got, bytes.length) }
  const length = Buffer.from([bytes.length >> 8, bytes.length & 255])
  return {
    line: `talk ${server} ${DNS_PORT} ${hex(Buffer.concat([length, bytes]))}`,
    read: (got) => readDnsResponse(got.subarray(2), bytes.length),
  }
}

/** Puts frames on the cable; the outcome is those that came from it, until one has `until` in it. */
export const frames = (sent: readonly Buffer[], until: Buffer): Attempt => ({
  line: ['frames', hex(until), ...sent.map(hex)].join(' '),
  read: asText,
})

function renderQuestion(name: string, type: number): Buffer {
  const labels = name.split('.').map((label) => Buffer.from([label.length, ...Buffer.from(label, 'latin1')]))
  const header = Buffer.from([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
  return Buffer.concat([header, ...labels, Buffer.from([0, type >> 8, type & 255, 0, 1])])
}

/** Our resolver repeats the question, and every record names it by its place. */
export function readDnsResponse(answer: Buffer, questionBytes: number): string {
  if (answer.length < questionBytes) return asText(answer)
  const addresses = Array.from({ length: answer.readUInt16BE(6) }, (_, record) => {
    const end = questionBytes + (record + 1) * A_RECORD_BYTES
    return answer.subarray(end - 4, end).join('.')
  })
  return [RCODES[answer.readUInt8(3) & 0xf], ...addresses].join(' ')
}
