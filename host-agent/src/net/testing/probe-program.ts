/**
 * Runs inside a guest (nsenter), or on the host as the user argv[3]: tries all targets of argv[2] (JSON) in parallel and prints the
 * outcomes as JSON.
 */
import { createSocket } from 'node:dgram'
import { Resolver } from 'node:dns/promises'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { readFrames, renderFrame } from '../egress-proxy/dns/tcp-frames.ts'
import type { Target } from './guest.ts'

/** What has not answered by then counts as dropped. */
const LIMIT_MS = 3_500
const BULK_LIMIT_MS = 20_000
/** Between two parts, so that each is sent as its own segment. */
const PART_DELAY_MS = 5
const QUIET_MS = 800
const RCODES = ['NOERROR', 'FORMERR', 'SERVFAIL', 'NXDOMAIN', 'NOTIMP', 'REFUSED']
const A_RECORD_BYTES = 16

const targets = JSON.parse(process.argv[2]!) as Target[]
if (process.argv[3] !== undefined) process.setuid!(Number(process.argv[3]))
const outcomes = await Promise.all(
  targets.map((target) => within(outcome(target), 'bulk' in target ? BULK_LIMIT_MS : LIMIT_MS)),
)
process.stdout.write(JSON.stringify(outcomes))
process.exit()

function outcome(target: Target): Promise<string> {
  if ('tcp' in target) return tcp(target.tcp, target.port, target.from)
  if ('name' in target) return resolve(target.name, target.server)
  if ('nameOverTcp' in target) return resolveOverTcp(target.nameOverTcp, target.server)
  if ('query' in target)
    return query(target.query, target.type, target.overTcp ?? false, target.server ?? '169.254.1.1')
  if ('bulk' in target) return sendBulk(target.bulk, target.port, target.bytes)
  if ('exchange' in target) return exchange(target.exchange, target.port, target.send)
  return udp(target.udp, target.port, target.text, target.from)
}

function tcp(host: string, port: number, from?: string): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>()
  const socket = connect({ host, port, ...(from === undefined ? {} : { localAddress: from }) })
  socket.on('data', (chunk) => resolve(chunk.toString()))
  socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code ?? error.message))
  return promise
}

async function resolve(name: string, server: string): Promise<string> {
  const resolver = new Resolver({ timeout: LIMIT_MS, tries: 1 })
  resolver.setServers([server])
  try {
    return (await resolver.resolve4(name)).join(' ')
  } catch (error) {
    return (error as NodeJS.ErrnoException).code ?? String(error)
  }
}

/** The last four bytes of the response are the address of its only record. */
async function resolveOverTcp(name: string, server: string): Promise<string> {
  return (await exchangeOverTcp(renderQuery(name, 1), server))?.subarray(-4).join('.') ?? 'closed'
}

async function query(name: string, type: number, overTcp: boolean, server: string): Promise<string> {
  const packet = renderQuery(name, type)
  const response = await (overTcp ? exchangeOverTcp(packet, server) : exchangeOverUdp(packet, server))
  if (response === undefined) return 'closed'
  const count = response.readUInt16BE(6)
  const addresses = Array.from({ length: count }, (_, record) => {
    const end = packet.length + (record + 1) * A_RECORD_BYTES
    return response.subarray(end - 4, end).join('.')
  })
  return [RCODES[response.readUInt8(3) & 0xf], ...addresses].join(' ')
}

function renderQuery(name: string, type: number): Buffer {
  const labels = name.split('.').map((label) => Buffer.from([label.length, ...Buffer.from(label, 'latin1')]))
  const header = Buffer.from([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
  return Buffer.concat([header, ...labels, Buffer.from([0, type >> 8, type & 255, 0, 1])])
}

async function exchangeOverTcp(query: Buffer, server: string): Promise<Buffer | undefined> {
  const socket = connect({ host: server, port: 53 })
  socket.on('error', () => {})
  socket.write(renderFrame(query))
  for await (const response of readFrames(socket)) return response
  return undefined
}

function exchangeOverUdp(query: Buffer, server: string): Promise<Buffer> {
  const { promise, resolve } = Promise.withResolvers<Buffer>()
  const socket = createSocket('udp4')
  socket.on('message', resolve)
  socket.send(query, 53, server)
  return promise
}

function sendBulk(host: string, port: number, bytes: number): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>()
  const socket = connect({ host, port }, () => socket.end(Buffer.alloc(bytes)))
  socket.on('data', () => {})
  socket.on('error', (error) => resolve(error.message))
  socket.on('close', () => resolve('sent all'))
  return promise
}

/** Receives until the other side closes or sends nothing for a while. */
function exchange(host: string, port: number, send: string[]): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>()
  let text = ''
  const socket = connect({ host, port, noDelay: true }, async () => {
    for (const part of send) {
      socket.write(part, 'latin1')
      await sleep(PART_DELAY_MS)
    }
  })
  let quiet: NodeJS.Timeout | undefined
  socket.on('data', (chunk) => {
    text += chunk.toString('latin1')
    clearTimeout(quiet)
    quiet = setTimeout(() => resolve(text), QUIET_MS)
  })
  socket.on('error', (error: NodeJS.ErrnoException) => resolve(text || (error.code ?? error.message)))
  socket.on('close', () => resolve(text || 'closed'))
  return promise
}

function udp(host: string, port: number, text: string, from?: string): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>()
  const socket = createSocket('udp4')
  socket.bind(0, from, () => socket.send(text, port, host, (error) => resolve(error ? error.message : 'sent')))
  return promise
}

function within(work: Promise<string>, limitMs: number): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>()
  setTimeout(() => resolve('no answer'), limitMs)
  return Promise.race([work, promise])
}
