/**
 * In place of the egress proxy: `broken-proxy-program.ts NAMES`. It answers every request correctly, except a `report` of a name in
 * BROKEN_ANSWERS or in `tricks` that is not among NAMES (JSON): another process has failed to answer those.
 */
import { Socket } from 'node:net'
import { openJsonLines } from '@warren/kit/json-lines'
import type { RpcRequest } from '../../rpc/protocol.ts'
import { CHANNEL_FD } from '../egress-proxy-protocol.ts'
import { BROKEN_ANSWERS, GOOD_ANSWER } from './broken-proxies.ts'

const known = JSON.parse(process.argv[2]!) as string[]
const socket = new Socket({ fd: CHANNEL_FD })
let staysWithoutChannel = false
const tricks: Record<string, () => void> = {
  'no answer': () => {},
  'a closed channel': () => {
    staysWithoutChannel = true
    setInterval(() => {}, 60_000)
    socket.destroy()
  },
  'an exit': () => process.exit(3),
}

openJsonLines(socket, {
  maxBytes: Number.POSITIVE_INFINITY,
  onMessage: (message) => answer(message as RpcRequest),
  onViolation: () => process.exit(1),
  onClose: () => staysWithoutChannel || process.exit(0),
})
socket.write('{"ready":true}\n')

function answer({ id, method, params }: RpcRequest): void {
  if (method !== 'report') return void socket.write(`{"id":${id},"result":null}\n`)
  const [{ ip: name }] = params as [{ ip: string }]
  const trick = tricks[name]
  if (known.includes(name)) send(GOOD_ANSWER, id)
  else if (trick) trick()
  else send(BROKEN_ANSWERS[name] ?? GOOD_ANSWER, id)
}

const send = (text: string, id: number): void => void socket.write(text.replaceAll('ID', `${id}`))
