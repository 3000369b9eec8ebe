/**
 * Runs inside a guest (nsenter): `held-flow-program.ts JSON` opens one flow, prints `data` for everything it receives and
 * `closed` at its end.
 */
import { createSocket } from 'node:dgram'
import { connect } from 'node:net'

const { tcp, udp, port, send } = JSON.parse(process.argv[2]!) as {
  tcp?: string
  udp?: string
  port: number
  send: string
}
const print = (line: string) => process.stdout.write(`${line}\n`)

if (tcp !== undefined) {
  let timer: NodeJS.Timeout | undefined
  const socket = connect({ host: tcp, port }, () => {
    socket.write(send)
    // Keeps sending, as a program does that has not noticed a dropped flow.
    timer = setInterval(() => socket.write('\r\n'), 20)
  })
  socket.on('data', () => print('data'))
  socket.on('error', () => {})
  socket.on('close', () => {
    clearInterval(timer)
    print('closed')
  })
} else {
  const socket = createSocket('udp4')
  socket.on('message', () => print('data'))
  socket.send(send, port, udp)
}
