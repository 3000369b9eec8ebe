/**
 * In place of the egress proxy: `broken-proxy-program.ts SETTINGS`. It answers every request correctly, except the first `report` of
 * each name in BROKEN_ANSWERS, and what names in `tricks` ask for. Files in the folder that the settings have as address say which it
 * has answered already, because the next process gets the same request.
 */
import { existsSync, writeFileSync } from 'node:fs'
import { Socket } from 'node:net'
import { join } from 'node:path'
import { openJsonLines } from '../../rpc/json-lines.ts'
import type { RpcRequest } from '../../rpc/protocol.ts'
import { CHANNEL_FD, type EgressProxySettings } from '../egress-proxy-protocol.ts'
import { BROKEN_ANSWERS, GOOD_ANSWER } from './broken-proxies.ts'

const { address: folder } = JSON.parse(process.argv[2]!) as EgressProxySettings
const socket = new Socket({ fd: CHANNEL_FD })
const tricks: Record<string, () => void> = {
  'no answer': () => {},
  'a closed channel': () => socket.destroy(),
  'an exit': () => process.exit(3),
}

openJsonLines(socket, {
  maxBytes: Number.POSITIVE_INFINITY,
  onMessage: (message) => answer(message as RpcRequest),
  onViolation: () => process.exit(1),
  onClose: () => isEnding() && process.exit(0),
})
socket.write('{"ready":true}\n')

function answer({ id, method, params }: RpcRequest): void {
  if (method !== 'report') return void socket.write(`{"id":${id},"result":null}\n`)
  const [{ ip: name }] = params as [{ ip: string }]
  const done = join(folder, encodeURIComponent(name))
  if (existsSync(done)) return void socket.write(GOOD_ANSWER.replaceAll('ID', `${id}`))
  writeFileSync(done, '')
  const trick = tricks[name]
  if (trick) trick()
  else socket.write((BROKEN_ANSWERS[name] ?? GOOD_ANSWER).replaceAll('ID', `${id}`))
}

/** One that has closed its channel itself stays, to be killed. */
const isEnding = (): boolean => !existsSync(join(folder, encodeURIComponent('a closed channel')))
