/** Programs for a guest. They are text because they run as other processes in other namespaces. Each prints its result. */

/** Arguments: address, TLS hello, bytes. Sends the bytes over one connection once the hello has a response; prints MB/s. */
export const SEND = `
const [host, hello, bytes] = process.argv.slice(1)
const socket = require('node:net').connect({ host, port: 443 })
const piece = Buffer.alloc(256 * 1024)
socket.once('data', () => {
  const startedAt = performance.now()
  let remaining = Number(bytes)
  const send = () => {
    while (remaining > 0) { remaining -= piece.length; if (!socket.write(piece)) return void socket.once('drain', send) }
    socket.end()
  }
  socket.on('close', () => console.log(Number(bytes) / 1e3 / (performance.now() - startedAt)))
  send()
})
socket.write(hello, 'hex')
`

/** Arguments: name, count. Resolves the name that many times in sequence; prints the milliseconds of each as JSON. */
export const RESOLVE = `
const [name, count] = process.argv.slice(1)
const resolver = new (require('node:dns').promises.Resolver)()
resolver.setServers(['169.254.1.1'])
;(async () => {
  const times = []
  for (let i = 0; i < Number(count); i++) {
    const startedAt = performance.now()
    await resolver.resolve4(name)
    times.push(performance.now() - startedAt)
  }
  console.log(JSON.stringify(times))
})()
`
