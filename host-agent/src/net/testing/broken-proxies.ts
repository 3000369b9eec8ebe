/**
 * What an egress proxy that was taken over may send to the host agent, in place of the answer to `report`. `ID` is replaced by
 * the id of the request.
 */
const ANSWER = { decisions: [], flows: [] }
const FLOW = { destination: 'shop.example', protocol: 'tcp', port: 443, count: 1 }
const reply = (result: unknown): string => `{"id":ID,"result":${JSON.stringify(result)}}\n`

export const GOOD_ANSWER = reply(ANSWER)

export const BROKEN_ANSWERS: Record<string, string> = {
  'bytes that are not JSON': '\u0000\u0001garbage\n',
  'an empty line': '\n',
  'a line that never ends': 'x'.repeat(5 * 1024 ** 2),
  null: 'null\n',
  'a number': '7\n',
  'a text': '"ready"\n',
  'a list': '[]\n',
  'an empty object': '{}\n',
  'an internal message of Node': '{"cmd":"NODE_HANDLE","type":"net.Socket"}\n',
  'an internal acknowledgement of Node': '{"cmd":"NODE_HANDLE_ACK"}\n',
  'a second start': '{"ready":true}\n',
  'a failed start after the start': '{"failed":{"message":"no"}}\n',
  'a reply without a result': '{"id":ID}\n',
  'a reply whose error is missing': '{"id":ID,"error":null}\n',
  'a reply whose error is a text': '{"id":ID,"error":"no"}\n',
  'a reply whose error has no message': '{"id":ID,"error":{}}\n',
  'a reply with an error of another type': '{"id":ID,"error":{"message":{}}}\n',
  'a reply with an error as long as a book': `{"id":ID,"error":{"message":"${'x'.repeat(20_000)}"}}\n`,
  'a reply with a text as id': '{"id":"ID","result":{}}\n',
  'a reply with a fraction as id': '{"id":ID.5,"result":{}}\n',
  'a reply to a request that was never made': '{"id":999999,"result":null}\n',
  'a reply to an earlier request': '{"id":0,"result":null}\n',
  'null in place of a report': reply(null),
  'a report without flows': reply({ decisions: [] }),
  'a report with another field': reply({ ...ANSWER, more: 1 }),
  'a report whose flows are an object': reply({ decisions: [], flows: {} }),
  'a report with a prototype': '{"id":ID,"result":{"decisions":[],"flows":[],"__proto__":{"toJSON":1}}}\n',
  'a flow without a destination': reply({ decisions: [], flows: [{ ...FLOW, destination: undefined }] }),
  'a flow with a destination as long as a book': reply({
    decisions: [],
    flows: [{ ...FLOW, destination: 'x'.repeat(9_999) }],
  }),
  'a flow with a port that is a text': reply({ decisions: [], flows: [{ ...FLOW, port: '443' }] }),
  'a flow with an infinite count':
    '{"id":ID,"result":{"decisions":[],"flows":[{"destination":"","protocol":"","port":1,"count":1e999}]}}\n',
  'more flows than there can be': reply({ decisions: [], flows: Array(1_001).fill(FLOW) }),
  'a refusal for a reason that does not exist': reply({
    flows: [],
    decisions: [
      { at: new Date(0).toISOString(), via: 'dns', destination: '', protocol: 'udp', reason: 'because', count: 1 },
    ],
  }),
  'two replies': GOOD_ANSWER + GOOD_ANSWER,
}
