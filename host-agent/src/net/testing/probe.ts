/** Runs inside a guest (nsenter): tries each target of argv[2] (JSON) at the same time and prints the outcomes. */
import { createSocket } from 'node:dgram'
import { Resolver } from 'node:dns/promises'
import { connect } from 'node:net'
import { readFrames, renderFrame } from '../dns/tcp-frames.ts'
import type { Target } from './start-guest.ts'

/** What does not answer by now is dropped. */
const LIMIT_MS = 1_500

const targets = JSON.parse(process.argv[2]!) as Target[]
const outcomes = await Promise.all(targets.map((target) => within(outcome(target))))
process.stdout.write(JSON.stringify(outcomes))
process.exit()

function outcome(target: Target): Promise<string> {
  if ('tcp' in target) return tcp(target.tcp, target.port, target.from)
  if ('name' in target) return resolve(target.name, target.server)
  if ('nameOverTcp' in target) return resolveOverTcp(target.nameOverTcp, target.server)
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

/** The last four bytes of the answer are the address of its only record. */
async function resolveOverTcp(name: string, server: string): Promise<string> {
  const labels = name.split('.').map((label) => Buffer.from([label.length, ...Buffer.from(label)]))
  const header = Buffer.from([0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0])
  const socket = connect({ host: server, port: 53 })
  socket.write(renderFrame(Buffer.concat([header, ...labels, Buffer.from([0, 0, 1, 0, 1])])))
  for await (const answer of readFrames(socket)) return answer.subarray(-4).join('.')
  return 'closed'
}

function udp(host: string, port: number, text: string, from?: string): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>()
  const socket = createSocket('udp4')
  socket.bind(0, from, () => socket.send(text, port, host, (error) => resolve(error ? error.message : 'sent')))
  return promise
}

function within(work: Promise<string>): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>()
  setTimeout(() => resolve('no answer'), LIMIT_MS)
  return Promise.race([work, promise])
}
