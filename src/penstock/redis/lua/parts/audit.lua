local function note_act(audit, who, what, count, detail)
  redis.call('XADD', audit, 'MAXLEN', '~', 10000, '*',
    'who', who, 'what', what, 'count', count, 'detail', detail)
end
